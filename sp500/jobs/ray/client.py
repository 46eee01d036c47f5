"""Ray's client of the Jobs API, with cluster, token and timeouts as parameters instead of from the environment.

Left to itself it goes to RAY_ADDRESS, whatever address it is given, sends a token only under RAY_AUTH_MODE=token, and
waits for an answer for ever. Importing this module imports ray, so that is done where a cluster is asked.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import aiohttp
import requests
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.job_submission import JobSubmissionClient

from sp500.errors import Refused, Unreachable
from sp500.jobs.executor import Request
from sp500.jobs.log_lines import behind
from sp500.jobs.ray.status import Answer

# Answers of a server, or of a gateway before it, that is busy or not up yet.
MAY_PASS = frozenset({408, 425, 429})
PIECE_BYTES, SHORT = 1 << 16, 200
# As much of a JSON string as holds whole escapes.
WHOLE = re.compile(r'(?:[^"\\]+|\\[^u]|\\u[0-9a-fA-F]{4})*', re.DOTALL)


class RayClient(JobSubmissionClient):  # type: ignore[misc] # ray has no types
    """One cluster's jobs. Every method raises Refused or Unreachable, in words that name the cluster."""

    def __init__(
        self, address: str, token: str | None, *, answer_seconds: float, silence_seconds: float, direct: bool = False
    ) -> None:
        """Bypass the proxies of the environment if `direct`."""
        # Not the parent's own: it would ask RAY_ADDRESS first, and the cluster at once. A header, be it an empty one,
        # keeps Ray from looking for a token itself.
        SubmissionClient.__init__(self, address, headers={"Authorization": f"Bearer {token}" if token else ""})
        self._token = token
        self._answer_seconds = answer_seconds
        self._silence_seconds = silence_seconds
        self._proxies = {"http": "", "https": ""} if direct else None

    def job(self, handle: str) -> Answer | None:
        """Return Ray's description of a job, its fields as JSON. None if Ray does not know it."""
        return self._request_json("GET", handle)

    def submit(self, handle: str, request: Request) -> None:
        """Upload the folder if that has to be, and start the job."""
        try:
            self._check_connection_and_version("2.0", "The Jobs API that this client speaks came with Ray 2.0.")
        except RuntimeError as error:
            raise Refused(f"{self._address}: {error}") from error
        try:
            self.submit_job(submission_id=handle, **request)
        except OSError as error:  # of the folder: those of the connection are ours by now
            raise Refused(f"{request['runtime_env']['working_dir']} cannot be packed: {error}") from error

    def stop(self, handle: str) -> bool:
        """Ask Ray to end the job's processes. False if there are none, yet or any more."""
        answer = self._request_json("POST", handle, "/stop")
        return answer is not None and bool(answer["stopped"])

    def remove(self, handle: str) -> None:
        """Have Ray forget a job that has ended."""
        self._request_json("DELETE", handle)

    def log(self, handle: str) -> Iterator[str]:
        """Yield all that a job's command printed so far, in pieces; nothing for an unknown job."""
        with self._do_request("GET", f"/api/jobs/{handle}/logs", stream=True) as answer:
            if answer.status_code == 404:
                if f"Job {handle} does not exist" in answer.text:
                    return
                raise self._no_ray(answer)
            try:
                yield from json_string("logs", answer.iter_content(PIECE_BYTES))
            except ValueError as error:
                raise Unreachable(
                    f"{self._address} returned an unexpected response; is this a Ray dashboard? {error}"
                ) from error
            except OSError as error:
                raise Unreachable(f"{self._address} does not answer: {_why(error)}") from error

    def tail(self, handle: str, after: int) -> Iterator[str]:
        """Yield what a job's command prints after `after` characters, until the stream ends, breaks or is silent.

        Ray always begins with the first character. Whether there will be more, only the job's status says.
        """
        stream = self.tail_job_logs(handle)
        with asyncio.Runner() as runner:
            yield from behind(iter(lambda: runner.run(_next(stream, self._silence_seconds)), None), after)

    def _request_json(self, method: str, handle: str, more: str = "") -> Answer | None:
        answer = self._do_request(method, f"/api/jobs/{handle}{more}")
        if answer.status_code == 404 and f"Job {handle} does not exist" in answer.text:
            return None
        try:
            document: Answer = answer.json()
        except ValueError as error:
            raise self._no_ray(answer) from error
        if answer.status_code == 404:
            raise self._no_ray(answer)
        return document

    def _do_request(
        self,
        method: str,
        endpoint: str,
        *,
        data: bytes | None = None,
        json_data: Answer | None = None,
        stream: bool = False,
    ) -> Any:
        """Send a request with a time limit, direct to this machine, and without redirects. Overrides the parent's.

        The parent sends the token for a forwarded port to the environment's proxy, and code to wherever it is
        redirected. What is neither done nor a 404 is an error of ours.
        """
        try:
            answer = requests.request(
                method,
                self._address + endpoint,
                data=data,
                json=json_data,
                headers=self._headers,
                timeout=self._answer_seconds,
                proxies=self._proxies,
                allow_redirects=False,
                stream=stream,
            )
        except OSError as error:  # the parent of all errors of requests
            raise Unreachable(f"{self._address} does not answer: {_why(error)}") from error
        self._check(answer, f"{method} {endpoint}")
        return answer

    def _check(self, answer: Any, request: str) -> None:
        """Raise what an answer means that is neither done nor a 404."""
        if answer.status_code in {401, 403}:
            raise Unreachable(f"{self._address} {self._token_fault()}")  # with the right one it would answer
        if answer.is_redirect or 300 <= answer.status_code < 400:
            raise Refused(
                f"{self._address} redirects {request} to {answer.headers.get('Location')!r:.200}, where"
                " nothing was sent. If that is the cluster, set its address with --address"
            )
        if answer.status_code < 400 or answer.status_code == 404:
            return
        # A traceback, or one in another, ended by a full stop.
        lines = [line for line in answer.text.splitlines() if re.search(r"\w", line)] or [str(answer.reason)]
        message = f"{self._address} answers {answer.status_code} to {request}: {lines[-1]:.300}"
        if answer.status_code >= 500 or answer.status_code in MAY_PASS:
            raise Unreachable(message)
        raise Refused(message)

    def _token_fault(self) -> str:
        if self._token is None:
            return (
                "requires a token and got none; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token or "
                "RAY_AUTH_TOKEN_PATH to its file"
            )
        return (
            "rejects this token; it may be another cluster's: check RAY_AUTH_TOKEN, or the file that "
            "RAY_AUTH_TOKEN_PATH names"
        )

    def _no_ray(self, answer: Any) -> Unreachable:
        return Unreachable(
            f"{self._address} answers {answer.status_code} as no Ray dashboard does: {answer.text.strip()!r:.100}; "
            "is it the dashboard's address, and Ray up behind it?"
        )


def json_string(key: str, chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the string of a JSON object with only that key, in pieces as they come. Raises ValueError otherwise."""
    opening = re.compile(rf'\s*\{{\s*"{key}"\s*:\s*"')
    decoder, buffer, begun = codecs.getincrementaldecoder("utf-8")(), "", False
    for chunk in chunks:
        buffer += decoder.decode(chunk)
        if not begun:
            if (match := opening.match(buffer)) is None:
                if len(buffer) > SHORT:
                    break
                continue
            buffer, begun = buffer[match.end() :], True
        whole = WHOLE.match(buffer)
        assert whole is not None
        size = whole.end()
        text = json.loads(f'"{buffer[:size]}"', strict=False)
        if text and "\ud800" <= text[-1] <= "\udbff":  # the other half of its character comes with the next chunk
            text, size = text[:-1], size - len("\\ud800")
        if text:
            yield str(text)
        if buffer[size : size + 1] == '"':
            return
        buffer = buffer[size:]
    raise ValueError(f"expected {{{key!r}: TEXT}}, found {buffer[:SHORT]!r:.100}")


async def _next(stream: AsyncIterator[str], seconds: float) -> str | None:
    try:
        return await asyncio.wait_for(anext(stream), seconds)
    except (StopAsyncIteration, TimeoutError, RuntimeError, OSError, aiohttp.ClientError):
        return None


def _why(error: BaseException) -> str:
    """Return the cause below the layers of requests and urllib3, which would report it in three lines."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TimeoutError):
            return "no answer in time"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    return str(error)
