"""Jobs on a real Ray cluster of this machine: a head without CPUs, behind a token, as KubeRay starts it."""

import contextlib
import json
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import executor_contract
import forks
import psutil
import pytest
from executor_contract import LINES, ended, look, own, running, until
from http_fakes import serving

from sp500.errors import ConfigError, Refused, Unreachable
from sp500.jobs.local_cluster import processes
from sp500.jobs.local_cluster.plan import Node
from sp500.jobs.ray import executor as ray_jobs
from sp500.jobs.ray import status as ray_status
from sp500.jobs.ray.executor import RayExecutor
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState, Role
from sp500.machine.ray_token import ray_token

HEAD = Node("head", True, {"num-cpus": "0", "include-log-monitor": "false"}, {})
EVERY_LINE = "".join(f"echo {line};" for line in LINES)
NASTY = [
    "a b",
    "it's",
    '"',
    "$HOME",
    "`id`",
    "$(id)",
    "a\\nb",
    "*",
    "~",
    "#no",
    "!x",
    ";",
    "&",
    "é€",
    "-n",
    "",
    "a=b",
    "%s",
]
SETTINGS = {
    "model": {"kind": "lstm", "lr": 1e-3, "none": None, "on": True},
    "words": ["it's", '"q"', "$HOME", "`id`", "two\nlines\n", "é€", "'", "EOF\n", "%s %d", "\\n", "\x00"],
    "long": "word " * 400,
}
ARRIVED = """
import json, os, sys, yaml
config = sys.argv.index("--config") + 1
read = [yaml.safe_load(open(sys.argv[config])) for _ in range(2)]
env = {name: value for name, value in os.environ.items() if name.startswith("X_")}
told = {"argv": sys.argv[1 : config - 1], "settings": read, "env": env}
print("arrived", json.dumps(told))
"""


class Cluster:
    """One that is up, and what a client needs of it."""

    def __init__(self, state):
        self.state = state
        self.port = free_port()
        self.up()
        self.token = ray_token()

    def up(self):
        """Start it, and return what is said of that."""
        said = []
        processes.up([HEAD], self.state, self.port, said.append)
        return said

    def down(self):
        """As a node that is lost; told to end, the dashboard waits for followers."""
        for start in self.starts():
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*start.children(recursive=True), start]:
                    process.kill()
        processes.down(self.state)

    def starts(self):
        """Each `ray start` that runs."""
        return (processes._load(self.state) or (None, []))[1]

    def restore(self):
        """Start it anew where it has ended by itself, as one did once on a busy machine, and one test alone fails."""
        if not self.starts():
            print("Ray's head ended:", (self.state / "head.log").read_text(errors="replace")[-2000:], file=sys.stderr)
            processes.down(self.state)
            self.up()

    def executor(self, port=None, **rest):
        return RayExecutor(f"http://127.0.0.1:{port or self.port}", **{"token": self.token, **rest})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))  # Ray's token lies there
        made = Cluster(folder / "state")
        try:
            yield made
        finally:
            made.down()


@pytest.fixture
def executor(ray_cluster):
    yield ray_cluster.executor()
    ray_cluster.restore()


@pytest.fixture
def asked(tmp_path):
    """Makes the request of a command with a folder of its own."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "arrived.py").write_text(ARRIVED)
    return lambda *argv, **rest: ray_jobs.request(JobSpec(argv=argv, **rest), cwd=code)


@pytest.fixture
def handle(executor):
    """One never used before; what runs under it is ended with the test."""
    handle = f"job-{secrets.token_hex(4)}"
    yield handle
    executor.delete(handle)


def submit_in_processes(rank, address, token, handle, request):
    """Submits from two threads of each of three processes, at once."""
    RayExecutor(address, token).status(handle)  # imports ray, once for all
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(6)
    several = [fork.Process(target=submit_in_threads, args=(together, address, token, handle, request)) for _ in "abc"]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 0, 0]


def submit_in_threads(together, address, token, handle, request):
    executor = RayExecutor(address, token)

    def submit(_):
        together.wait(120)
        executor.submit(handle, request)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(submit, range(2)))


class TestContract(executor_contract.ExecutorContract):
    @pytest.fixture
    def executor(self, ray_cluster):
        yield ray_cluster.executor()
        ray_cluster.restore()

    @pytest.fixture
    def succeeding(self, asked, tmp_path):
        return asked("sh", "-c", f"echo >>{tmp_path / 'starts'}; {EVERY_LINE}")

    @pytest.fixture
    def starts(self, tmp_path):
        return lambda handle: len((tmp_path / "starts").read_text().splitlines())

    @pytest.fixture
    def failing(self, asked):
        return asked("sh", "-c", "exit 3")

    @pytest.fixture
    def endless(self, asked):
        return asked("sh", "-c", f"echo {LINES[0]}; exec sleep 1000")

    @pytest.fixture
    def held(self, asked, tmp_path):
        wait = f"until [ -e {tmp_path / 'go'} ]; do sleep 0.1; done"
        rest = "; ".join(f"echo {line}" for line in LINES[1:])
        return asked("sh", "-c", f"echo {LINES[0]}; {wait}; {rest}"), (tmp_path / "go").touch

    def test_handle_submitted_by_several_at_once_runs_once(self, ray_cluster, executor, succeeding, starts, handle):
        """As for every executor, and from several processes."""
        address = f"http://127.0.0.1:{ray_cluster.port}"
        forks.run_group(1, submit_in_processes, address, ray_cluster.token, handle, succeeding)
        assert until(executor, handle, ended).state is JobState.SUCCEEDED
        assert starts(handle) == 1


# What is asked for


def test_first_word_is_a_program_and_no_word_of_the_shell(asked, tmp_path):
    for word in ("if", "echo", "a=b", "my program"):
        program = tmp_path / word
        program.write_text('#!/bin/sh\nprintf %s "$1"\n')
        program.chmod(0o755)
        request = asked(word, "a\\nb")
        line, path = ["sh", "-c", request["entrypoint"]], f"{tmp_path}:{os.environ['PATH']}"
        assert subprocess.run(line, env={"PATH": path}, stdout=subprocess.PIPE, check=True).stdout == b"a\\nb"


def test_no_file_of_the_settings_is_left(asked, tmp_path):
    (tmp_path / "tmp").mkdir()
    request = asked("sh", "-c", 'cat "$2"; exit 5', "sh", settings={"a": 1})
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(["sh", "-c", request["entrypoint"]], env=environment, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"a: 1\n", 5)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "InteractiveMode"),
        ("image", "sp500:1.0"),
        ("keep_succeeded", 1),
        ("keep_failed", 1),
        ("namespace", "lab"),
        ("service_account", "reader"),
        ("pull_secrets", ("registry",)),
        ("queue", "gpus"),
        ("node_labels", {"disk": "ssd"}),
        ("tolerations", ("spot:NoSchedule",)),
        ("secrets", {"HF_TOKEN": "hf/token"}),
        ("env", {"X_A": "in $HOME"}),
        ("env", {"X_A": "in ${HOME}"}),
        ("settings", {"long": "x" * 2**17}),
    ],
)
def test_what_a_running_cluster_cannot_give_is_refused_by_name(asked, field, value):
    with pytest.raises(ConfigError, match=f"^{field}: "):
        asked("python", "x.py", **{field: value})


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ray://127.0.0.1:10001", "http://", "auto", ""])
def test_address_of_no_dashboard_is_refused(address):
    with pytest.raises(ConfigError, match="8265"):
        RayExecutor(address)


def test_token_with_a_line_end_is_refused_and_not_repeated():
    with pytest.raises(ConfigError) as refused:
        RayExecutor("http://127.0.0.1:8265", "secret\n")
    assert "secret" not in str(refused.value)


# What Ray says, where it says it seldom

ENTRYPOINT = "exec python x.py"
ANNOUNCED = f"Running entrypoint for job job-1: {ENTRYPOINT}\n"


def told(**fields):
    common = {"submission_id": "job-1", "entrypoint": ENTRYPOINT, "start_time": 1500, "end_time": 2500}
    return ray_status.status({**common, "status": "FAILED", "message": None, **fields})


def exited(code, log):
    said = f"Job entrypoint command failed with exit code {code}, last available logs (truncated to 20,000 chars):\n"
    return told(
        driver_exit_code=code, message=said + log, driver_node_id="n", error_type="JOB_ENTRYPOINT_COMMAND_ERROR"
    )


@pytest.mark.parametrize(
    ("error", "node", "state", "retryable"),
    [
        # A head that came back with the memory of its jobs, but without their processes.
        ("JOB_SUPERVISOR_ACTOR_START_FAILURE", "n", JobState.LOST, True),
        ("JOB_SUPERVISOR_ACTOR_START_FAILURE", None, JobState.FAILED, True),
        ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", None, JobState.FAILED, True),
        ("JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", None, JobState.FAILED, True),
        ("JOB_ENTRYPOINT_COMMAND_START_ERROR", "n", JobState.FAILED, True),
        ("RUNTIME_ENV_SETUP_FAILURE", None, JobState.FAILED, False),
    ],
)
def test_job_is_lost_where_its_command_ran_and_left_no_exit_code(error, node, state, retryable):
    seen = told(error_type=error, driver_node_id=node, message="something")
    assert (seen.state, seen.retryable, seen.exit_code) == (state, retryable, None)
    assert (seen.started, seen.ended) == (1.5 if node else None, 2.5)


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (1, ANNOUNCED, "exit code 1"),
        (1, f"{ANNOUNCED}Traceback\n  at\nKeyError: 'AAPL'\n\n", "exit code 1: KeyError: 'AAPL'"),
        (127, f"sh: x: not found\n{ANNOUNCED}", "exit code 127: sh: x: not found"),
        (1, f"half a {ANNOUNCED}line\n", "exit code 1: half a line"),
        (-9, ANNOUNCED, "exit code 137 (SIGKILL)"),
        (143, ANNOUNCED, "exit code 143 (SIGTERM)"),
        (1, "\x1b[31mred\rdone\n", "exit code 1: done"),
        (1, "\x1b[31mred\n", "exit code 1: [31mred"),
    ],
)
def test_reason_of_a_failure_is_the_last_that_the_command_printed(code, log, reason):
    assert exited(code, log).reason == reason


def test_long_reason_keeps_both_its_ends():
    reason = exited(1, f"OSError: {'deep ' * 400}: no room\n").reason
    assert reason.startswith("exit code 1: OSError: deep")
    assert reason.endswith("deep : no room")
    assert len(reason) < 310


# What a cluster says


def test_words_settings_and_environment_arrive_on_the_cluster_as_they_are(executor, asked, handle):
    env = {"X_A": 'it\'s "$" 100$ `id` $(id) \\n', "X_B": "two\nlines", "X_C": ""}
    executor.submit(handle, asked(sys.executable, "arrived.py", *NASTY, settings=SETTINGS, env=env))
    assert until(executor, handle, ended).state is JobState.SUCCEEDED
    lines = [line.text for line in executor.logs(handle, role=None, tail=None, follow=False)]
    [arrived] = [json.loads(line.removeprefix("arrived ")) for line in lines if line.startswith("arrived ")]
    assert arrived == {"argv": NASTY, "settings": [SETTINGS, SETTINGS], "env": env}


@pytest.mark.parametrize(
    ("argv", "code", "reason"),
    [
        ((sys.executable, "-c", "raise ValueError('no such ticker')"), 1, "exit code 1: ValueError: no such ticker"),
        (("no-such-program",), 127, "no-such-program"),
        (("sh", "-c", "kill -KILL $$"), 137, "exit code 137 (SIGKILL)"),
    ],
)
def test_failure_of_a_command_is_told_by_its_exit_code_and_its_last_words(executor, asked, handle, argv, code, reason):
    executor.submit(handle, asked(*argv, settings={"a": 1}))
    seen = until(executor, handle, ended)
    assert (seen.state, seen.exit_code, seen.retryable) == (JobState.FAILED, code, code != 127)
    assert reason in seen.reason


def test_environment_that_cannot_be_made_is_the_reason_and_not_tried_again(executor, asked, handle):
    executor.submit(handle, asked("true", working_dir="https://localhost/none.zip"))
    seen = until(executor, handle, ended)
    assert (seen.state, seen.retryable, seen.started) == (JobState.FAILED, False, None)
    assert "cannot be made" in seen.reason
    assert "Connection refused" in seen.reason


def test_job_whose_watcher_died_is_lost(ray_cluster, executor, asked, handle):
    executor.submit(handle, asked("sleep", "1000"))
    until(executor, handle, running)
    [head] = ray_cluster.starts()
    [watcher] = [one for one in head.children(recursive=True) if "JobSupervisor" in one.name()]
    watcher.kill()
    seen = until(executor, handle, ended)
    assert (seen.state, seen.retryable) == (JobState.LOST, True)
    assert "has died" in seen.reason


def test_roles_without_a_log_are_refused_and_the_dashboard_named(ray_cluster, executor, handle):
    for role in (Role.HEAD, Role.WORKER):
        with pytest.raises(ConfigError, match=f"{role}.*http://127.0.0.1:{ray_cluster.port}/"):
            executor.logs(handle, role=role, tail=None, follow=False)


def test_folder_that_is_gone_is_refused(executor, asked, tmp_path, handle):
    request = asked("true")
    (tmp_path / "code" / "arrived.py").unlink()
    (tmp_path / "code").rmdir()
    with pytest.raises(Refused, match="no such folder"):
        executor.submit(handle, request)
    assert look(executor, handle).state is JobState.LOST


# Tokens, and clusters that are not there


def test_token_that_is_missing_or_wrong_is_told_apart(ray_cluster, asked, monkeypatch, handle):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # Ray's own client would now find the file under HOME
    with pytest.raises(Unreachable, match=r"requires a token.*RAY_AUTH_MODE=token.*RAY_AUTH_TOKEN_PATH"):
        ray_cluster.executor(token=None).submit(handle, asked("true"))
    with pytest.raises(Unreachable, match="rejects this token"):
        ray_cluster.executor(token="wrong").status(handle)


def test_environment_names_no_other_cluster_and_keeps_no_token(ray_cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    before = dict(os.environ)
    assert ray_cluster.executor().status("job-none").state is JobState.LOST
    assert not any(ray_cluster.token in value for name, value in os.environ.items() if before.get(name) != value)


def test_cluster_that_is_not_there_is_unreachable(asked):
    gone = RayExecutor(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="Connection refused"):
        gone.status("job-none")
    with pytest.raises(Unreachable, match="Connection refused"):
        gone.submit("job-none", asked("true"))


def test_cluster_that_never_answers_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = RayExecutor(f"http://127.0.0.1:{server.getsockname()[1]}", answer_seconds=0.3)
        with pytest.raises(Unreachable, match="no answer"):
            silent.status("job-none")


@pytest.mark.parametrize(
    ("code", "said", "error", "told"),
    [
        (404, "default backend - 404", Unreachable, "as no Ray dashboard does: 'default backend - 404'"),
        (200, "<html>hello</html>", Unreachable, "as no Ray dashboard does"),
        (503, "first\nno healthy upstream\n", Unreachable, "503.*: no healthy upstream"),
        (429, "slow down", Unreachable, "429"),
        (413, "too large", Refused, "413.*too large"),
        (400, "", Refused, "400"),
    ],
)
def test_what_answers_instead_of_ray_is_told_in_its_words(code, said, error, told):
    with answering(code, said) as server, pytest.raises(error, match=told):
        RayExecutor(server.url).status("job-none")


def test_cluster_of_an_older_ray_is_refused(asked):
    older = answering(200, '{"ray_version": "1.13.0"}', unknown="job-none")
    with older as server, pytest.raises(Refused, match=r"1\.13\.0"):
        RayExecutor(server.url).submit("job-none", asked("true"))


def answering(code, said, unknown=None):
    """A server that always says the same, but that it does not know one job."""

    def answer(request):
        if unknown is not None and request.path.endswith(unknown):
            request.reply(404, f"Job {unknown} does not exist")
        else:
            request.reply(code, said)

    return serving(answer)


class Proxy:
    """Between client and dashboard; every connection can be cut, and new ones turned away."""

    def __init__(self, to):
        self.to, self.open, self.ends, self.dead = to, True, [], set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                if not self.open:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.to))
                self.ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=(source, target), daemon=True).start()

    def carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self.dead:
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def silence(self):
        """Nothing of what is sent arrives any more, and nobody is told."""
        self.dead.update(self.ends)

    def cut(self):
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.ends.clear()


@pytest.fixture
def proxy(ray_cluster):
    made = Proxy(ray_cluster.port)
    try:
        yield made
    finally:
        made.server.shutdown(socket.SHUT_RDWR)
        made.server.close()
        made.cut()


def test_lines_followed_over_broken_and_dead_connections_come_once_each_and_a_cluster_that_stays_away_ends_them(
    ray_cluster, proxy, executor, asked, tmp_path, handle
):
    wait = "until [ -e {0} ]; do sleep 0.1; done"
    said = [f"echo {line}" for line in LINES]
    steps = [*said[:2], wait.format(tmp_path / "one"), said[2], wait.format(tmp_path / "two"), *said[3:]]
    executor.submit(handle, asked("sh", "-c", "; ".join(steps)))
    until(executor, handle, running)

    impatient = ray_cluster.executor(proxy.port, patience_seconds=1).logs(handle, role=None, tail=None, follow=True)
    while own([next(impatient)]) != LINES[:1]:
        pass
    proxy.open = False
    proxy.cut()
    with pytest.raises(Unreachable):
        list(impatient)

    proxy.open = True
    through = ray_cluster.executor(proxy.port, silence_seconds=3)
    followed = []
    for line in through.logs(handle, role=None, tail=None, follow=True):
        followed.append(line.text)
        if line.text == LINES[1]:
            proxy.cut()
            (tmp_path / "one").touch()
        if line.text == LINES[2]:
            proxy.silence()
            (tmp_path / "two").touch()
    assert followed == LINES


class Breaking:
    """A client whose first stream breaks after `at` characters, beside a cluster that is away for a moment then."""

    def __init__(self, log, at):
        self.whole, self.at, self.asked = log, at, 0

    def job(self, handle):
        self.asked += 1
        if self.asked == 3:
            raise Unreachable("away")
        state = "SUCCEEDED" if self.asked > 5 else "RUNNING"
        return {
            "status": state,
            "entrypoint": ENTRYPOINT,
            "submission_id": handle,
            "message": "",
            "driver_node_id": "n",
        }

    def log(self, handle):
        return self.whole if self.asked > 5 else self.whole[: self.at // 2]

    def tail(self, handle, after):
        yield from self.whole[after : self.at if self.asked == 2 else None]


@pytest.mark.parametrize("tail", [None, 0, 2])
def test_log_broken_at_any_character_gives_each_line_once(tail):
    log = (
        f"2026-11-21 18:48:43,309\tINFO job_manager.py:581 -- Runtime env is setting up.\na\n{ANNOUNCED}\nb\u2028c\nend"
    )
    for at in range(len(log) + 1):
        executor = RayExecutor("http://127.0.0.1:1", pause=lambda seconds: None)
        executor.__dict__["_client"] = Breaking(log, at)
        lines = [line.text for line in executor.logs("job-1", role=None, tail=tail, follow=True)]
        there = ["a", "", "b\u2028c", "end"]
        assert lines == there if tail is None else there[len(there) - len(lines) :] == lines


def test_job_of_a_cluster_that_was_started_anew_is_lost(ray_cluster, executor, asked, handle, monkeypatch):
    """The last test of the cluster, whose head ends once before it is up, is started again and knows no earlier job."""
    torn, command = iter([[sys.executable, "-c", "raise SystemExit('no memory')"]]), processes.command
    monkeypatch.setattr(processes, "command", lambda *argv, **flags: next(torn, None) or command(*argv, **flags))
    executor.submit(handle, asked("sleep", "1000"))
    until(executor, handle, running)
    ray_cluster.down()
    with pytest.raises(Unreachable):
        executor.status(handle)
    assert ray_cluster.up() == [
        "node head ended before it was up:\n  no memory\nit is started again",
        "head is up: 0 CPUs",
    ]
    seen = until_answered(executor, handle)
    assert (seen.state, seen.retryable) == (JobState.LOST, True)
    assert f"http://127.0.0.1:{ray_cluster.port} has no job {handle}" in seen.reason


def until_answered(executor, handle):
    deadline = time.monotonic() + 120
    while True:
        try:
            return look(executor, handle)
        except Unreachable:
            assert time.monotonic() < deadline
            time.sleep(0.2)
