"""A cluster of the manifest's shape on this machine, and jobs on it as a user submits them."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from queue_fakes import until

from sp500.errors import ResourcesError
from sp500.jobs.local_cluster import processes
from sp500.jobs.local_cluster.plan import Node
from sp500.runs.store import RunStore

ROOT = Path(__file__).parents[3]
RAY = str(Path(sys.executable).with_name("ray"))
SMALL = ("--data.start", "2015-01-01", "--train.epochs", "2")


def sp500(*argv, check=True):
    command = [sys.executable, "-m", "sp500.cli", *map(str, argv)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert not check or done.returncode == 0, done.stderr
    return done


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Rehearsal:
    """The cluster that the tests of this file share. A test that kills a node ends it, and the next starts it anew."""

    def __init__(self, folder):
        self.folder, self.done, self.port = folder, None, None
        self._state = ("--state-dir", folder / "state")

    def up(self):
        if self.done is None:
            self.port = free_port()
            flags = ("--port", self.port, "--runs-dir", self.folder / "runs", *self._state)
            self.done = sp500("jobs", "rehearse", *flags)

    def down(self):
        if self.done is None:
            return
        self.done = None
        kept = json.loads((self.folder / "state" / "processes.json").read_text())
        assert naming(kept["folder"])
        sp500("jobs", "rehearse", "--down", *self._state)
        assert naming(kept["folder"]) == []
        assert not any(psutil.pid_exists(pid) for pid, _ in kept["starts"])
        assert not Path(kept["folder"]).exists()


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    made = Rehearsal(tmp_path_factory.mktemp("rehearsal"))
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def cluster(rehearsal):
    rehearsal.up()
    return rehearsal.port, rehearsal.folder, rehearsal.done


def naming(folder):
    """Command lines that name a folder, as those of Ray's processes do."""
    lines = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    return [line for line in lines if folder in line]


def submitted(port, *argv, **environment):
    """A job on the cluster, as a user submits it; the command follows its log to its end."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    where = ["--address", f"http://127.0.0.1:{port}", "--working-dir", str(ROOT)]
    command = [RAY, "job", "submit", *where, "--", "python", *map(str, argv)]
    return subprocess.Popen(
        command,
        env=plain | {"RAY_AUTH_MODE": "token"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process):
    said, _ = process.communicate(timeout=200)
    return process.returncode, said


def test_what_is_up_is_told_and_what_is_not_rehearsed(cluster):
    port, folder, done = cluster
    assert "head is up: 0 CPUs" in done.stderr
    assert done.stderr.count("is up: 1 CPU") == 2
    for told in ("memory limits", "RAY_AUTH_MODE=token", f"http://127.0.0.1:{port}", f"sp500-runs = {folder / 'runs'}"):
        assert told in done.stdout


def test_token_lies_in_rays_file_closed_to_others(cluster):
    path = Path.home() / ".ray" / "auth_token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text()) == 64


def test_second_rehearsal_is_refused_and_the_first_stays(cluster):
    port, folder, _ = cluster
    state = ("--state-dir", folder / "state")
    refused = sp500("jobs", "rehearse", *state, check=False)
    assert (refused.returncode, "is up already" in refused.stderr) == (2, True)
    refused = sp500("jobs", "rehearse", "--port", port, "--state-dir", folder / "other", check=False)
    assert (refused.returncode, f"port {port} is in use" in refused.stderr) == (2, True)


def test_what_cannot_be_rehearsed_is_refused_in_one_message(tmp_path):
    (tmp_path / "file").write_text("x")
    for flags, told in (
        (("--runs-dir", tmp_path / "file" / "runs"), "for the claim sp500-runs: cannot be made"),
        ((tmp_path / "none.yaml",), "none.yaml: cannot be read"),
        ((tmp_path / "file",), "expected one document of kind RayCluster"),
    ):
        refused = sp500("jobs", "rehearse", "--state-dir", tmp_path / "state", *flags, check=False)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
        assert told in refused.stderr


def test_port_of_a_connection_is_taken_too(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port = client.getsockname()[1]
        refused = sp500("jobs", "rehearse", "--port", port, "--state-dir", tmp_path, check=False)
    assert (refused.returncode, f"port {port} is in use" in refused.stderr) == (2, True)


def test_node_that_ends_twice_is_an_error_with_its_last_lines_and_leaves_nothing(tmp_path, monkeypatch):
    said, ends = [], [sys.executable, "-c", "raise SystemExit('no memory')"]
    monkeypatch.setattr(processes, "command", lambda *argv, **flags: ends)
    ended = "node head ended before it was up:\n  no memory"
    with pytest.raises(ResourcesError) as refused:
        processes.up([Node("head", head=True, params={})], tmp_path, free_port(), said.append)
    assert (str(refused.value), said) == (ended, [f"{ended}\nit is started again"])
    assert [path.name for path in tmp_path.iterdir()] == ["head.log"]


@pytest.fixture
def bystander(tmp_path):
    """A process whose command line names a folder that is not a rehearsal's."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)])
    yield folder, process
    process.kill()
    process.wait()


def damaged(folder):
    """Contents that a kept file can have after a crash or by another's hand."""
    yield from ("", "{", "[]", "null", '{"folder": "/tmp/sp500-ray-abcdefgh"}', '{"folder": 1, "starts": [[1]]}')
    for path in ("", ".", "/", "/tmp", str(folder), f"/tmp/sp500-ray-abcdefgh/../..{folder}", "/tmp/sp500-ray-"):
        yield json.dumps({"folder": path, "starts": []})


@pytest.fixture
def harmless(bystander, monkeypatch):
    """Folders that were to be removed. Nothing is, and of the machine's processes only the bystander is in reach.

    Without the check that is tested, "" would end every process with a dot in its command line, and remove this folder.
    """
    removed = []
    # Not shutil's own, by which temporary folders of other tests of this process go when they are collected.
    recording = SimpleNamespace(**vars(shutil) | {"rmtree": lambda path, **_: removed.append(path)})
    monkeypatch.setattr(processes, "shutil", recording)
    monkeypatch.setattr(processes.psutil, "process_iter", lambda: iter([psutil.Process(bystander[1].pid)]))
    return removed


def test_damaged_file_ends_and_removes_nothing_and_down_works(bystander, harmless, tmp_path):
    folder, process = bystander
    state = tmp_path / "state"
    state.mkdir()
    for text in damaged(folder):
        (state / "processes.json").write_text(text)
        assert processes.down(state) == 0
        assert not (state / "processes.json").exists()
        assert harmless == []
        assert process.poll() is None


def test_link_or_folder_of_another_user_in_place_of_rays_is_not_removed(bystander, harmless, tmp_path):
    folder, process = bystander
    link = Path(tempfile.mkdtemp(prefix=processes.PREFIX, dir="/tmp"))
    link.rmdir()
    link.symlink_to(folder)
    try:
        (tmp_path / "processes.json").write_text(json.dumps({"folder": str(link), "starts": []}))
        assert processes.down(tmp_path) == 0
        assert harmless == []
        assert process.poll() is None
    finally:
        link.unlink()


def test_damaged_file_is_named_in_a_warning_and_does_not_keep_a_rehearsal_from_starting(tmp_path):
    (tmp_path / "processes.json").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = sp500("jobs", "rehearse", "--port", port, "--state-dir", tmp_path, check=False)
    assert "processes.json is damaged and ignored" in refused.stderr
    assert (refused.returncode, f"port {port} is in use" in refused.stderr) == (
        2,
        True,
    )  # the next check after this one


def test_wrong_token_and_none_are_refused(cluster):
    port, _, _ = cluster
    for environment in ({"RAY_AUTH_TOKEN": "wrong"}, {"RAY_AUTH_MODE": "disabled"}):
        code, said = finished(submitted(port, "experiments/train.py", "--help", **environment))
        assert code != 0
        assert "AuthenticationError" in said


def test_scale_and_tune_run_there_and_their_results_are_in_the_report(cluster):
    port, folder, _ = cluster
    scale = ("experiments/scale.py", "--name", "scale", "--multipliers", 1, "--arms", "ray", "--max-steps", 20)
    for argv in (scale, ("experiments/tune.py", "--name", "tune", *SMALL)):
        code, said = finished(submitted(port, *argv))
        assert code == 0, said[-2000:]
        assert "succeeded" in said
    store = RunStore(folder / "runs")
    rows, search = store.record("scale"), store.record("tune")
    assert (rows.status, search.status, search.search["configs"]) == ("ok", "ok", 18)
    out = folder / "report"
    compare = [sys.executable, "experiments/compare.py", "--runs-dir", folder / "runs", "--out", out, "--json"]
    done = subprocess.run(compare, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)
    page = (out / "index.html").read_text()
    assert "scale" in page
    assert "tune" in page


def test_eight_gpus_that_are_not_there_are_refused_by_name(cluster):
    port, _, _ = cluster
    started = time.monotonic()
    code, said = finished(submitted(port, "experiments/train.py", "--num-workers", 8, "--train.device", "cuda"))
    assert code != 0
    assert "--num-workers 8 needs a GPU for each; the cluster has 2 CPUs and 0 GPUs on 3 nodes" in said
    assert time.monotonic() - started < 60


@pytest.fixture
def short_lived(rehearsal, cluster):
    """The cluster of a test that damages it."""
    try:
        yield cluster
    finally:
        rehearsal.down()


def test_job_survives_the_death_of_the_node_that_it_trains_on(short_lived):
    port, folder, _ = short_lived
    job = submitted(port, "experiments/train.py", "--name", "hit", "--num-workers", 1, "--train.epochs", 60, *SMALL[:2])
    epochs = folder / "runs" / "hit" / "epochs.jsonl"
    until(lambda: epochs.exists() and len(epochs.read_text().splitlines()) > 3, 120)
    session = json.loads((folder / "state" / "processes.json").read_text())["folder"]
    [raylet] = [process for process in psutil.process_iter(["name", "cmdline"]) if trains(process, session)]
    raylet.send_signal(signal.SIGKILL)
    code, said = finished(job)
    assert code == 0, said[-2000:]
    record = RunStore(folder / "runs").record("hit")
    assert record.status == "ok"
    assert [json.loads(line)["epoch"] for line in epochs.read_text().splitlines()] == list(
        range(1, len(epochs.read_text().splitlines()) + 1)
    )


def trains(process, session):
    """Whether a process is the raylet of this session that has a worker of Ray Train."""
    if process.info["name"] != "raylet" or session not in " ".join(process.info["cmdline"] or []):
        return False
    return any("RayTrainWorker" in " ".join(child.cmdline()) for child in process.children())
