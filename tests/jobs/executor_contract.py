"""What every executor promises, tried on each of them by a subclass.

A subclass gives the executor, three kinds of jobs, and a count of starts that is not the executor's own word.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sp500.jobs.executor import Executor, Line
from sp500.jobs.manifests.manifest import Document
from sp500.jobs.state import JobState, Role, Status, apply_stop

LINES = [f"line {number}" for number in range(1, 6)]
STOP_SECONDS = 15


def own(lines: Iterable[Line]) -> list[str]:
    """What the job itself printed; an executor may say more in between."""
    return [line.text for line in lines if line.role is Role.SUBMITTER and line.text.startswith("line ")]


def look(executor: Executor, handle: str) -> Status:
    """The status, whose reason is one line and says something, whatever the state."""
    seen = executor.status(handle)
    assert seen.reason.strip()
    assert len(seen.reason.splitlines()) == 1
    return seen


def until(executor: Executor, handle: str, reached: Callable[[Status], bool], seconds: float = 90) -> Status:
    """The first status that is what a test waits for; the test fails when it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not reached(seen := look(executor, handle)):
        assert time.monotonic() < deadline, f"after {seconds} s still {seen}"
        time.sleep(0.02)
    return seen


def ended(seen: Status) -> bool:
    return seen.state.finished


def running(seen: Status) -> bool:
    """Whether the command runs; a job that has ended never will."""
    assert not seen.state.finished, seen
    return seen.state is JobState.RUNNING


SLEEP = "import time; print('line 1', flush=True); time.sleep(3600)"


class ExecutorContract:
    """Cases for every executor."""

    @pytest.fixture
    def executor(self) -> Executor:
        raise NotImplementedError

    @pytest.fixture
    def succeeding(self) -> Document:
        """A request whose command prints LINES and ends with exit code 0."""
        raise NotImplementedError

    @pytest.fixture
    def failing(self) -> Document:
        """A request whose command ends with exit code 3."""
        raise NotImplementedError

    @pytest.fixture
    def endless(self) -> Document:
        """A request whose command prints the first of LINES and then runs until it is stopped."""
        raise NotImplementedError

    @pytest.fixture
    def held(self) -> tuple[Document, Callable[[], None]]:
        """A request whose command prints the first of LINES; and what lets it print the others and end with 0."""
        raise NotImplementedError

    @pytest.fixture
    def starts(self) -> Callable[[str], int]:
        """How often the command of `succeeding` was started under a handle, as told by what it left behind."""
        raise NotImplementedError

    @pytest.fixture
    def handle(self, executor: Executor) -> Iterable[str]:
        """A handle never used before. What a test leaves running under it is deleted."""
        handle = f"job-{secrets.token_hex(4)}"
        yield handle
        executor.delete(handle)

    def test_job_that_succeeds_says_so_and_keeps_its_times_and_its_lines_in_order(self, executor, succeeding, handle):
        before = time.time() - 1  # clocks that count whole seconds
        executor.submit(handle, succeeding)
        seen = until(executor, handle, ended)
        assert seen.state is JobState.SUCCEEDED
        assert seen.exit_code in {0, None}
        assert before <= seen.started <= seen.ended <= time.time() + 1
        for role in (Role.SUBMITTER, None):
            assert own(executor.logs(handle, role=role, tail=None, follow=False)) == LINES
        assert own(executor.logs(handle, role=Role.SUBMITTER, tail=2, follow=False)) == LINES[-2:]
        assert own(executor.logs(handle, role=Role.SUBMITTER, tail=None, follow=True)) == LINES

    def test_job_that_fails_keeps_its_exit_code_and_says_it(self, executor, failing, handle):
        executor.submit(handle, failing)
        seen = until(executor, handle, ended)
        assert (seen.state, seen.exit_code) == (JobState.FAILED, 3)
        assert "3" in seen.reason

    def test_job_that_runs_is_running_until_it_is_stopped(self, executor, endless, handle):
        executor.submit(handle, endless)
        assert until(executor, handle, running).exit_code is None
        executor.stop(handle)
        seen = until(executor, handle, ended, seconds=STOP_SECONDS)
        assert apply_stop(seen, stop_asked=True).state is JobState.STOPPED

    def test_stopping_twice_is_stopping_once(self, executor, endless, handle):
        executor.submit(handle, endless)
        until(executor, handle, running)
        executor.stop(handle)
        executor.stop(handle)
        seen = until(executor, handle, ended, seconds=STOP_SECONDS)
        executor.stop(handle)
        assert look(executor, handle).state is seen.state

    def test_handle_submitted_again_or_stopped_too_late_runs_once_until_it_is_deleted(
        self, executor, succeeding, starts, handle
    ):
        executor.submit(handle, succeeding)
        executor.submit(handle, succeeding)
        before = until(executor, handle, ended)
        assert before.state is JobState.SUCCEEDED
        executor.stop(handle)
        assert look(executor, handle) == before
        executor.submit(handle, succeeding)
        assert look(executor, handle) == before
        assert starts(handle) == 1
        executor.delete(handle)
        until(executor, handle, lambda seen: seen.state is JobState.LOST)
        assert list(executor.logs(handle, role=None, tail=None, follow=False)) == []

    def test_handle_submitted_by_several_at_once_runs_once(self, executor, succeeding, starts, handle):
        together = threading.Barrier(4)

        def submit(_: int) -> None:
            together.wait()
            executor.submit(handle, succeeding)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(submit, range(4)))
        assert until(executor, handle, ended).state is JobState.SUCCEEDED
        assert starts(handle) == 1

    def test_handle_that_nobody_knows_is_lost(self, executor, handle):
        assert look(executor, handle).state is JobState.LOST

    def test_handle_that_nobody_knows_has_no_lines(self, executor, handle):
        assert list(executor.logs(handle, role=None, tail=None, follow=False)) == []
        assert list(executor.logs(handle, role=None, tail=None, follow=True)) == []

    def test_handle_that_nobody_knows_can_be_stopped_and_deleted(self, executor, handle):
        executor.stop(handle)
        executor.delete(handle)
        assert look(executor, handle).state is JobState.LOST

    def test_lines_followed_while_the_job_runs_come_once_and_end_with_it(self, executor, held, handle):
        request, release = held
        executor.submit(handle, request)
        until(executor, handle, running)
        followed = []
        for line in executor.logs(handle, role=Role.SUBMITTER, tail=None, follow=True):
            if own([line]) == LINES[:1]:
                release()
            followed.append(line)
        assert own(followed) == LINES
        assert until(executor, handle, ended).state is JobState.SUCCEEDED

    def test_running_job_that_is_deleted_is_known_no_more(self, executor, endless, handle):
        executor.submit(handle, endless)
        until(executor, handle, running)
        executor.delete(handle)
        until(executor, handle, lambda seen: seen.state is JobState.LOST, seconds=STOP_SECONDS)


class ProgramContract(ExecutorContract):
    """The same for an executor whose jobs are Python programs here. `ask` makes the request of a program."""

    @pytest.fixture
    def succeeding(self, ask):
        return ask(f"print(*{LINES}, sep='\\n')")

    @pytest.fixture
    def failing(self, ask):
        return ask("raise SystemExit(3)")

    @pytest.fixture
    def endless(self, ask):
        return ask(SLEEP)

    @pytest.fixture
    def held(self, ask, tmp_path):
        go = tmp_path / "go"
        wait = f"import os, time\nprint('line 1')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        return ask(f"{wait}print(*{LINES[1:]}, sep='\\n')"), go.touch
