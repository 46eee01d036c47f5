"""Jobs of this machine: the contract, what is asked of it, and the limits that it holds."""

from __future__ import annotations

import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest
from executor_contract import SLEEP, ProgramContract, ended, until

from sp500.errors import ConfigError, Unreachable
from sp500.jobs.local import executor as local
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState, Role

MIB = 2**20
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


class TestLocalExecutor(ProgramContract):
    @pytest.fixture
    def executor(self, here):
        return here

    @pytest.fixture
    def starts(self, started):
        return lambda handle: started()


def asked(spec, **given):
    return local.request(
        spec, **{"cwd": Path("/work"), "environment": {"PATH": "/bin"}, "python": "/usr/bin/py"} | given
    )


@pytest.mark.parametrize(
    ("word", "started"),
    [
        *(("python", ["/usr/bin/py"]), ("python3", ["/usr/bin/py"]), ("bash", ["bash"])),
        ("sp500", ["/usr/bin/py", "-P", "-m", "sp500.cli"]),
    ],
)
def test_python_and_sp500_are_of_the_interpreter_given_and_nothing_else_is_changed(word, started):
    assert asked(JobSpec(argv=(word, "python", "x.py")))["argv"] == [*started, "python", "x.py"]


def test_secret_comes_from_the_shell_and_is_asked_for_where_it_is_missing():
    spec = JobSpec(argv=("a",), secrets={"HF_TOKEN": "hf/token"})
    with pytest.raises(ConfigError, match=r"HF_TOKEN .*export it from your shell"):
        asked(spec)
    assert asked(spec, environment={"HF_TOKEN": "value"})["environment"]["HF_TOKEN"] == "value"


def test_settings_come_as_a_file_that_cannot_be_changed_by_accident(here, tmp_path):
    spec = JobSpec(argv=("sh", "-c", 'echo "$1"; cat "$2"', "sh"), settings={"train": {"epochs": 3}})
    here.submit("a", asked(spec, cwd=tmp_path))
    assert until(here, "a", ended).state is JobState.SUCCEEDED
    lines = [line.text for line in here.logs("a", role=None, tail=None, follow=False)]
    assert lines == ["--config", "train:", "  epochs: 3"]
    assert stat.S_IMODE((tmp_path / "jobs/a/settings.yaml").stat().st_mode) == 0o400


def test_folder_and_environment_are_for_the_user_alone(here, ask, tmp_path):
    here.submit("a", ask("pass"))
    modes = [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("jobs", "jobs/a", "jobs/a/request.json")]
    assert modes == [0o700, 0o700, 0o600]


def test_command_gets_its_environment_and_no_other(here, ask):
    here.submit("a", ask("import os; print(*sorted(os.environ))", environment={"ONE": "1", "LC_ALL": "C.UTF-8"}))
    until(here, "a", ended)
    assert [line.text for line in here.logs("a", role=None, tail=None, follow=False)] == ["LC_ALL ONE SP500_JOB"]


def test_stdin_is_empty_and_stderr_is_in_the_log(here, ask):
    here.submit("a", ask("import sys; print(repr(sys.stdin.read()), file=sys.stderr)"))
    until(here, "a", ended)
    assert [line.text for line in here.logs("a", role=None, tail=None, follow=False)] == ["''"]


@pytest.mark.parametrize("role", [Role.HEAD, Role.WORKER])
def test_role_without_a_log_of_its_own_is_refused_when_asked_not_when_read(here, role):
    with pytest.raises(ConfigError, match="one tree of processes"):
        here.logs("a", role=role, tail=None, follow=False)


@pytest.mark.parametrize("handle", ["../a", "A", "", "a/b", "a" * 48])
def test_handle_that_is_none_is_refused(here, handle):
    with pytest.raises(ConfigError, match="handle"):
        here.status(handle)


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"argv": ["no-such-command"]}, 127, "no-such-command"),
        ({"argv": ["/etc/passwd"]}, 126, "/etc/passwd"),
        ({"argv": ["true"], "cwd": "/no/such/folder"}, 126, "/no/such/folder"),
        ({"argv": ["true", "zero\0byte"]}, 126, "null byte"),
    ],
)
def test_command_that_cannot_be_started_says_why(here, ask, changes, code, told):
    here.submit("a", ask("pass", **changes))
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code, seen.retryable) == (JobState.FAILED, code, False)
    assert told in seen.reason


@pytest.mark.parametrize(("code", "retryable"), [(1, True), (2, False), (3, False), (4, False), (130, True)])
def test_exit_code_decides_whether_another_try_is_worth_it(here, ask, code, retryable):
    here.submit("a", ask(f"raise SystemExit({code})"))
    assert until(here, "a", ended).retryable is retryable


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_command_killed_by_a_signal_names_it(here, ask, name):
    here.submit("a", ask(f"import os, signal; os.kill(os.getpid(), signal.{name})"))
    seen = until(here, "a", ended)
    assert (seen.exit_code, seen.retryable) == (128 + getattr(signal, name), True)
    assert name in seen.reason


def test_memory_over_the_limit_ends_the_whole_tree(here, ask, tmp_path):
    held = f"import time; data = bytearray(b'x') * {200 * MIB}; time.sleep(3600)"
    program = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {held!r}]); {_note(tmp_path)}"
    here.submit("a", ask(f"{program}; time.sleep(3600)", memory_bytes=100 * MIB))
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code, seen.retryable) == (JobState.FAILED, 137, False)
    assert "limit of 100 MiB" in seen.reason
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_deadline_ends_a_command_that_does_not_listen(here, ask):
    here.submit("a", ask(DEAF, deadline_seconds=1, grace_seconds=0.3))
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code, seen.retryable) == (JobState.FAILED, 4, False)
    assert "deadline of 1 s" in seen.reason
    assert 1.3 <= seen.ended - seen.started < 15


def test_stop_lets_a_command_end_in_its_own_way(here, ask):
    tidy = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('tidy'), sys.exit(0)))"
    here.submit("a", ask(f"{tidy}\nprint('line 1')\ntime.sleep(3600)"))
    next(here.logs("a", role=None, tail=None, follow=True))
    here.stop("a")
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code) == (JobState.STOPPED, 0)
    assert [line.text for line in here.logs("a", role=None, tail=1, follow=False)] == ["tidy"]


def test_stop_waits_for_the_children_of_a_shell_that_ends_at_once(here, ask):
    slow = "lambda *_: (time.sleep(0.5), print('saved'), sys.exit())"
    child = f"import signal, sys, time; signal.signal(signal.SIGTERM, {slow});"
    argv = ["sh", "-c", f'{sys.executable} -c "$1"; true', "sh", f"{child} print('line 1'); time.sleep(3600)"]
    here.submit("a", ask("pass", argv=argv))
    next(here.logs("a", role=None, tail=None, follow=True))
    here.stop("a")
    assert until(here, "a", ended).state is JobState.STOPPED
    assert [line.text for line in here.logs("a", role=None, tail=1, follow=False)] == ["saved"]


def test_stop_ends_a_command_that_does_not_listen(here, ask):
    here.submit("a", ask(DEAF, grace_seconds=0.3))
    next(here.logs("a", role=None, tail=None, follow=True))
    here.stop("a")
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code, seen.retryable) == (JobState.STOPPED, 137, False)


@pytest.mark.parametrize("end", ["stop", "itself"])
def test_no_descendant_is_left_not_even_in_a_session_of_its_own(here, ask, tmp_path, end):
    away = f"subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True)"
    middle = f"import subprocess, sys; p = {away}; {_note(tmp_path)}"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {middle!r}]); print('line 1')"
    here.submit("a", ask(f"{program}\n{SLEEP if end == 'stop' else ''}", grace_seconds=0.3))
    next(here.logs("a", role=None, tail=None, follow=True))
    if end == "stop":
        here.stop("a")
    assert until(here, "a", ended).state is (JobState.STOPPED if end == "stop" else JobState.SUCCEEDED)
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_folder_that_cannot_be_written_is_named(ask, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable, match="file"):
        local.LocalExecutor(tmp_path / "file").submit("a", ask("pass"))


def test_submit_that_failed_leaves_the_start_to_the_next(here, ask, tmp_path):
    (tmp_path / "jobs/a/request.json").mkdir(parents=True)  # where a file has to go
    with pytest.raises(Unreachable, match="job a"):
        here.submit("a", ask("pass"))
    (tmp_path / "jobs/a/request.json").rmdir()
    here.submit("a", ask("pass"))
    assert until(here, "a", ended).state is JobState.SUCCEEDED


def _note(folder):
    """Code that writes the number of `p` to a file, whole or not at all."""
    part, whole = str(folder / "part"), str(folder / "child")
    return f"import os; open({part!r}, 'w').write(str(p.pid)); os.rename({part!r}, {whole!r})"
