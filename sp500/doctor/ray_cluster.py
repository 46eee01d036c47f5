"""A running Ray cluster, asked over HTTP as Ray's own client asks: does it answer, to this token, with our version?

It is asked without a token first, so that a token is sent only to a cluster that wants one.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sp500.doctor.check import Check, Probe, ok, skipped, wrong
from sp500.formatting import http_address
from sp500.machine.ray_token import Token, find_token, token_path

SECONDS = 5
# Ray's default port for the dashboard, which also serves the Jobs API.
DASHBOARD_PORT = 8265
NAMES = ("ray address", "ray token", "ray version")
UNAUTHORIZED, FORBIDDEN = 401, 403  # Ray's middleware: no token came; another token came


@dataclass(frozen=True)
class Answer:
    """The answer to a request: an HTTP status and Ray's version, or a failure."""

    status: int = 0
    version: str = ""
    failure: str = ""

    @property
    def is_ray(self) -> bool:
        """True if Ray's dashboard answered."""
        return bool(self.version) or self.status in (UNAUTHORIZED, FORBIDDEN)


def probes(
    address: str | None, environment: Mapping[str, str], home: Path, ours: str, *, wanted: bool | None
) -> list[Probe]:
    """Return the checks. `wanted`: True if a cluster is asked for, False if none is, None if one may be set.

    `ours` is the version of Ray that is installed here.
    """
    return [
        ("token file", lambda: [token_file(*mode_of(token_path(environment, home)))]),
        ("ray address", lambda: cluster(address, environment, home, ours, wanted=wanted)),
    ]


def cluster(
    address: str | None, environment: Mapping[str, str], home: Path, ours: str, *, wanted: bool | None
) -> list[Check]:
    """Check the cluster at `address`, or the one that the environment names: its address, our token, its version."""
    configured = address or environment.get("RAY_API_SERVER_ADDRESS") or environment.get("RAY_ADDRESS")
    if wanted is False:
        return [skipped(name, "jobs run elsewhere (--on)") for name in NAMES]
    if not configured:
        return _nothing(wanted=bool(wanted))
    url = dashboard(configured)
    if not url:
        advice = f"name the dashboard: http://HOST:{DASHBOARD_PORT}"
        return [wrong(NAMES[0], f"jobs cannot be sent to the address {configured}", advice), *_skip_rest()]
    mode, token = environment.get("RAY_AUTH_MODE", ""), find_token(environment, home)
    bare = ask_version(url)
    sends = mode.lower() == "token" and bool(token.text)
    signed = ask_version(url, token.text) if bare.status == UNAUTHORIZED and sends else None
    return judge_answers(url, bare, signed, mode=mode, token=token, ours=ours)


def judge_answers(url: str, bare: Answer, signed: Answer | None, *, mode: str, token: Token, ours: str) -> list[Check]:
    """Return the checks from the answers without and with a token. `signed` is None if Ray's client would send none."""
    way_out = f"start it, or forward its port {DASHBOARD_PORT}, or correct RAY_ADDRESS"
    if bare.failure:
        return [wrong(NAMES[0], f"{url} does not answer ({bare.failure})", way_out), *_skip_rest()]
    if not bare.is_ray:
        found = f"{url} answers, but not as Ray's dashboard does (HTTP {bare.status})"
        return [wrong(NAMES[0], found, f"name the dashboard: http://HOST:{DASHBOARD_PORT}"), *_skip_rest()]
    theirs = signed.version if signed else bare.version
    return [ok(NAMES[0], f"{url} answers"), token_check(bare, signed, mode, token), version(theirs, ours)]


def token_check(bare: Answer, signed: Answer | None, mode: str, token: Token) -> Check:
    """Check whether the cluster accepts what Ray's client sends."""
    name = NAMES[1]
    if bare.version:
        remedy = "start it with RAY_AUTH_MODE=token; on Kubernetes set authOptions.mode: token in the RayCluster"
        return wrong(name, "the cluster asks for none, so everybody who reaches it can run code there", remedy)
    if signed and signed.version:
        return ok(name, f"accepted ({token.source})")
    fetch = "put the cluster's into RAY_AUTH_TOKEN; on Kubernetes it is in the Secret named as the cluster, auth_token"
    if token.fault:
        return wrong(name, token.fault, fetch)
    if not token.text:
        return wrong(name, f"missing ({bare.status}): the cluster asks for a token, and there is none here", fetch)
    if signed is None:
        found = f"missing ({bare.status}): there is one ({token.source}), but RAY_AUTH_MODE is {mode or 'not set'}"
        return wrong(name, f"{found}, so Ray's client does not send it", "export RAY_AUTH_MODE=token")
    return wrong(name, f"wrong ({signed.status or signed.failure}): {token.source} is not this cluster's token", fetch)


def version(theirs: str, ours: str) -> Check:
    """Compare the cluster's Ray with the one here."""
    name = NAMES[2]
    if not theirs:
        return skipped(name, "reported only to a client with the right token")
    if theirs == ours:
        return ok(name, f"{theirs}, as here")
    return wrong(
        name, f"{theirs} on the cluster, {ours or 'none'} here", "use the same on both sides: change the image"
    )


def token_file(path: Path, mode: int | None) -> Check:
    """Check whether only the owner can read a token's file; `mode` is None if there is no file."""
    if mode is None:
        return skipped("token file", f"no {path}; Ray makes one when it starts a cluster here")
    if mode & 0o077:
        return wrong("token file", f"{path} has mode {mode:04o}, so others can use it", f"chmod 600 {path}")
    return ok("token file", f"{path}, mode {mode:04o}")


def mode_of(path: Path) -> tuple[Path, int | None]:
    """Return the file and its permissions; None if there is none."""
    return path, path.stat().st_mode & 0o777 if path.is_file() else None


def dashboard(address: str) -> str:
    """Return the URL to ask; empty for an address that the Jobs API cannot be reached at.

    Ray's own address (HOST:6379, or `auto` for the cluster on this machine) means the dashboard of that host.
    """
    if "://" in address:
        return address.rstrip("/") if urlsplit(address).scheme in ("http", "https") else ""
    host = "127.0.0.1" if address == "auto" else urlsplit(f"//{address}").hostname
    return http_address(host, DASHBOARD_PORT) if host else ""


def ask_version(url: str, token: str = "") -> Answer:
    """Ask the dashboard at `url` for its version, with Ray's header if there is a token."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with _OPENER.open(urllib.request.Request(f"{url}/api/version", headers=headers), timeout=SECONDS) as answer:  # noqa: S310 - http or https
            return Answer(answer.status, str(json.load(answer)["ray_version"]))
    except urllib.error.HTTPError as error:
        error.close()
        return Answer(error.code)
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        why = getattr(error, "reason", None) or error
        return Answer(failure=str(getattr(why, "strerror", None) or why or type(error).__name__))
    except (ValueError, KeyError, TypeError):  # no JSON, or not Ray's
        return Answer(200)


def _nothing(*, wanted: bool) -> list[Check]:
    if not wanted:
        return [skipped(NAMES[0], "no RAY_ADDRESS and no --address"), *_skip_rest("no address")]
    advice = f"export RAY_ADDRESS=http://HOST:{DASHBOARD_PORT}; scripts/rehearse starts a cluster on this machine"
    return [wrong(NAMES[0], "no RAY_ADDRESS and no --address", advice), *_skip_rest()]


def _skip_rest(why: str = "no Ray cluster answers") -> list[Check]:
    return [skipped(name, why) for name in NAMES[1:]]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token goes to the address that was given, and nowhere else."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect: the redirect is the answer."""


_OPENER = urllib.request.build_opener(_NoRedirects)
