"""The agent's server over real stdio, asked by the protocol's own client; and what its places hold."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import forks
import pytest
from mcp import Client, StdioServerParameters
from queue_fakes import managed

from sp500.agent.requests import SubmitJob
from sp500.commands.agent import agent_tools
from sp500.errors import ConfigError
from sp500.jobs import client as jobs_client

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SECONDS = 120


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A state folder; when the tests are done, whoever still manages it is ended."""
    with managed(tmp_path_factory.mktemp("agent") / "sp500") as folder:
        yield folder


@pytest.fixture
def queue(state):
    """The queue of that folder; what a test leaves running there is stopped at its end."""
    queue = jobs_client.open_queue(state)
    yield queue
    if left := [job.id for job in queue.ledger.jobs() if not job.state.finished]:
        queue.stop(left)
        queue.wait(left, SECONDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def command(state, runs):
    """Arguments of the interpreter for a server of those folders."""
    return ("-m", "sp500.cli", "mcp", "--state-dir", str(state), "--runs-dir", str(runs))


@pytest.fixture(scope="module")
def server(command, tmp_path_factory):
    """A server in a subprocess: a client that is connected to it, and the loop of the client."""
    folder = tmp_path_factory.mktemp("no clone")
    words = [*command, "--folder", str(folder)]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=ENVIRONMENT)
    connected, done = Future(), asyncio.Event()

    async def serve():
        async with Client(parameters) as client:
            connected.set_result((client, asyncio.get_running_loop()))
            await done.wait()

    with ThreadPoolExecutor(1) as thread:  # a connection is closed by the task that opened it
        serving = thread.submit(asyncio.run, serve())
        wait([connected, serving], SECONDS, FIRST_COMPLETED)
        if serving.done():
            serving.result()
        client, loop = connected.result(0)
        try:
            yield client, loop
        finally:
            loop.call_soon_threadsafe(done.set)


@pytest.fixture
def session(server, queue):
    """Has `talk(call, client)` with the server; `call` gives a tool's answer."""
    client, loop = server

    async def call(name, **arguments):
        return await client.call_tool(name, arguments)

    def run(talk):
        async def limited():
            return await asyncio.wait_for(talk(call, client), SECONDS)

        return asyncio.run_coroutine_threadsafe(limited(), loop).result()

    return run


def said(answer):
    return answer.content[0].text


async def ended(call, id):
    """A job's status at its end."""
    for _ in range(SECONDS // 30):
        answer = await call("job_status", id=id, wait=30)
        if answer.structured_content["state"] in {"SUCCEEDED", "FAILED", "STOPPED", "LOST"}:
            return answer
    raise AssertionError(said(answer))


def test_agent_estimates_submits_a_job_follows_it_to_its_end_and_reads_its_log(session, runs):
    arguments = ["--task", "synthetic", "--train.epochs", "1", "--name", "first"]

    async def talk(call, client):
        listed = (await client.list_tools()).tools
        before = await call("list_jobs")
        estimate = await call("estimate_speedup", workers=[1, 4])
        job = await call("submit_job", experiment="train", arguments=arguments)
        id = job.structured_content["id"]
        last = await ended(call, id)
        return listed, before, estimate, job, last, await call("job_logs", id=id), await call("list_jobs")

    listed, before, estimate, job, last, logs, jobs = session(talk)
    names = {"submit_job", "job_status", "job_logs", "stop_job", "list_jobs", "estimate_speedup"}
    assert {tool.name for tool in listed} == names
    rows = estimate.structured_content["rows"]
    assert [(row["workers"], row["seconds"]) for row in rows] == [(1, None), (4, None)]
    assert "No run of scale" in estimate.structured_content["assumption"]
    told = job.structured_content
    assert (told["state"], told["project"]) == ("QUEUED", "agent")
    assert re.fullmatch(r"1 CPU, [\d.]+ GiB", told["plan"]["takes"])
    assert f"job_status {told['id']}" in said(job)
    assert (last.structured_content["state"], last.structured_content["exit_code"]) == ("SUCCEEDED", 0)
    assert last.structured_content["history"][-1]["state"] == "SUCCEEDED"
    assert json.loads((runs / "first" / "record.json").read_text())["status"] == "ok"
    assert any("first" in line for line in logs.structured_content["lines"])
    assert said(logs) == "\n".join(logs.structured_content["lines"])
    assert told["id"] in said(jobs)
    known, ids = ({one["id"] for one in answer.structured_content["jobs"]} for answer in (before, jobs))
    assert ids - known == {told["id"]}


REFUSED = [
    ("submit_job", {"experiment": "train", "workers": 0}, "workers: Input should be greater than or equal to 1"),
    ("submit_job", {"experiment": "train", "workers": 10_000}, "workers: 10000 are more than this machine"),
    ("submit_job", {"experiment": "rm"}, "experiment: Input should be 'prepare', 'train'"),
    ("submit_job", {"experiment": "train", "arguments": ["--name", "a; rm -rf x"]}, "contains ';'"),
    ("submit_job", {"experiment": "train", "arguments": ["--model.hidden", "x"]}, "Error parsing --model.hidden"),
    ("submit_job", {"experiment": "train", "num_workers": 2}, "unknown key num_workers; did you mean workers?"),
    ("submit_job", {"experiment": "train", "on": "kuberay"}, "kuberay is not allowed here"),
    ("estimate_speedup", {"workers": [0]}, "Input should be greater than or equal to 1"),
    ("estimate_speedup", {"workers": [10_000]}, "Input should be less than or equal to 1024"),
    ("estimate_speedup", {"workers": []}, "expected numbers of workers"),
    ("estimate_speedup", {"experiment": "prepare"}, "experiment: Input should be 'scale'"),
    ("job_status", {"id": "../../etc"}, "id: String should match pattern"),
    ("job_status", {"id": "nobody"}, "no job 'nobody' in"),
    ("job_logs", {"id": "nobody", "tail": 201}, "tail: Input should be less than or equal to 200"),
    ("stop_job", {"id": "nobody"}, "no job 'nobody' in"),
    ("run_shell", {}, "no such tool; there are submit_job"),
]


def test_what_may_not_be_is_refused_as_an_error_with_a_reason_and_queues_nothing(session, queue):
    before = len(queue.ledger.jobs())

    async def talk(call, _):
        return [await call(name, **arguments) for name, arguments, _ in REFUSED]

    for answer, (name, arguments, why) in zip(session(talk), REFUSED, strict=True):
        assert answer.is_error, (name, arguments)
        assert why in said(answer)
        assert "Traceback" not in said(answer)
    assert len(queue.ledger.jobs()) == before


def test_huge_request_is_refused_in_a_short_answer(session):
    async def talk(call, _):
        return [
            await call("submit_job", experiment="train", memory="9" * 1_000_000),
            await call("submit_job", **{"experiment": "train", "x" * 1_000_000: 1}),
            await call("submit_job", experiment="train", memory="9" * 50_000),
        ]

    for answer in session(talk):
        assert answer.is_error
        assert len(said(answer)) < 5_000


def test_requests_that_wait_hold_up_no_other(session, state):
    done = forks.run(
        ["sp500", "jobs", "submit", "--state-dir", str(state), "--json", "--", "sleep", "600"],
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    job = json.loads(done.stdout)["id"]

    async def talk(call, _):
        waits = [asyncio.create_task(call("job_status", id=job, wait=30)) for _ in range(60)]
        await asyncio.sleep(1)
        listed = await call("list_jobs")
        held_up = any(each.done() for each in waits)
        for each in waits:
            each.cancel()
        return listed, held_up

    listed, held_up = session(talk)
    assert job in said(listed)
    assert not held_up


def test_agent_sees_how_far_its_own_job_is_and_stops_it_and_not_that_of_another_project(session, state):
    words = ["sp500", "jobs", "submit", "--state-dir", str(state), "--workers", "1", "--json", "--", "true"]
    done = forks.run(words, cwd=ROOT, env=ENVIRONMENT)
    others = json.loads(done.stdout)["id"]
    long = ["--task", "synthetic", "--train.epochs", "1000000", "--train.early-stop-patience", "0"]

    async def talk(call, _):
        id = (await call("submit_job", experiment="train", arguments=long)).structured_content["id"]
        while ((seen := await call("job_status", id=id, wait=0.5)).structured_content["progress"] or {"done": 0})[
            "done"
        ] < 1:
            assert seen.structured_content["state"] in {"QUEUED", "PENDING", "RUNNING"}, said(seen)
        listed = await call("list_jobs", state="RUNNING")
        refused = await call("stop_job", id=others)
        await call("stop_job", id=id, wait=0)
        return seen, listed, refused, await ended(call, id)

    seen, listed, refused, last = session(talk)
    progress = seen.structured_content["progress"]
    assert (progress["kind"], progress["total"], progress["at_most"]) == ("epoch", 1000000, False)
    assert min(progress["samples_per_second"], progress["best_loss"], progress["eta_seconds"]) > 0
    assert f"progress   epoch {progress['done']}/1000000, " in said(seen)
    assert listed.structured_content["jobs"][-1]["progress"]["done"] >= progress["done"]
    assert "/1000000, " in said(listed)
    assert refused.is_error
    assert "of project default" in said(refused)
    assert last.structured_content["state"] == "STOPPED"


@contextmanager
def ending(process):
    """Leaves no process behind when a test fails."""
    try:
        yield
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stdout_is_the_protocols_alone_and_a_signal_ends_the_server(command, number):
    words = [sys.executable, *command, "--folder", str(ROOT)]
    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, env=ENVIRONMENT, **pipes) as server, ending(server):
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "sp500"
        server.send_signal(number)
        assert server.wait(120) == 128 + number
        assert server.stdout.read() == ""


def test_folder_that_is_not_there_exits_2_and_says_so(command, tmp_path):
    done = forks.run(["sp500", *command[2:], "--folder", str(tmp_path / "typo")])
    assert (done.returncode, done.stdout) == (2, "")
    assert "typo: no such folder" in done.stderr


@pytest.fixture
def desk(tmp_path):
    """Makes a desk for one place; nothing in these tests gets as far as being queued."""
    ways = {"cluster": ROOT / "tests" / "jobs" / "raycluster.yaml"}
    return lambda on: agent_tools.AgentContext(
        jobs_client.open_queue(tmp_path / "state"), tmp_path, (on,), "agent", ways
    )


@pytest.mark.parametrize("arguments", [["--data.source", "out/prices.csv"], ["--data.source=out/prices.csv"]])
def test_link_that_leads_out_of_the_project_is_refused(desk, tmp_path, monkeypatch, arguments):
    project = tmp_path / "project"
    project.mkdir()
    (project / "out").symlink_to(tmp_path)
    monkeypatch.chdir(project)
    with pytest.raises(ConfigError, match="out of the project"):
        agent_tools.submit_job(desk("local"), SubmitJob(experiment="train", arguments=arguments))


COUNTED = "capacity: {kuberay: {cpus: 16}}\n"


@pytest.mark.parametrize(
    ("on", "capacity", "fields", "why"),
    [
        ("kuberay", "", {"workers": 5}, r"workers: 5 are more than the cluster of .* holds; use 1 to 4"),
        ("kuberay", COUNTED, {"workers": 9, "cpus": 2}, "workers: 9, each of 2 CPUs, are more than the capacity"),
        (
            "kuberay",
            "",
            {"cpus": 64, "gpus": 8, "memory": "999GiB"},
            "cpus, gpus, memory: the capacity of kuberay is not",
        ),
        ("kuberay", COUNTED, {"cpus": 2, "gpus": 8}, "^gpus: the capacity of kuberay is not configured"),
        ("ray", "", {"workers": 1}, r"the capacity of ray is not configured; write capacity: \{ray: "),
    ],
)
def test_job_of_a_cluster_takes_no_more_than_somebody_has_counted(desk, tmp_path, on, capacity, fields, why):
    context = desk(on)
    (tmp_path / "state" / "queue.yaml").write_text(capacity)
    with pytest.raises(ConfigError, match=why):
        agent_tools.submit_job(context, SubmitJob(experiment="train", **fields))
