"""A program of the user's, alone and on workers: its environment, its failures, the comparison."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sp500.commands.experiments import compare, train
from sp500.plugins import admission
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore

SCRIPT = """
import json, os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = sys.argv[1]
with open(f"{folder}/rank-{rank}", "w") as file:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT"
    names += " TORCHELASTIC_RUN_ID OMP_NUM_THREADS"
    json.dump({name: os.environ[name] for name in names.split()} | {"pid": os.getpid()}, file)
mode = sys.argv[2] if len(sys.argv) > 2 else ""
if mode == "fail" and rank == 1:
    print("a reason", flush=True)
    sys.exit(3)
if mode == "memory" and rank == 1:
    x = b"1" * 300_000_000
if mode in ("fail", "memory", "hang"):
    time.sleep(600)
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if mode == "taken" and rank == 0 and not os.path.exists(f"{folder}/tried"):
    with open(f"{folder}/tried", "w") as file:
        file.write(str(port))
    other = socket.create_server((host, port))
with socket.create_server((host, port)) if rank == 0 else socket.socket() as meeting:
    for _ in range(world - 1) if rank == 0 else ():
        meeting.accept()
    while rank:
        try:
            meeting.connect((host, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
for epoch in range(1, 3):
    print(json.dumps({"epoch": epoch, "loss": 1 / epoch, "samples": 100 * epoch}))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, with a script."""
    monkeypatch.setattr(admission, "KNOWN", tmp_path / "home" / "own-sources")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("ddp.py").write_text(SCRIPT)
    return tmp_path


def run(name: str, *flags: str, mode: str = "") -> tuple[int, RunRecord]:
    command = f"python ddp.py {Path.cwd()} {mode}"
    code = train.main(["--command", command, "--metric", "loss", "--name", name, *flags])
    record = RunStore(Path("runs")).record(name)
    assert record
    return code, record


def left() -> dict[int, dict[str, Any]]:
    """Return what each rank wrote of its environment."""
    return {int(path.name[5:]): json.loads(path.read_text()) for path in Path().glob("rank-*")}


def wait_until_no_process_is_left() -> None:
    deadline = time.monotonic() + 60
    pids = [rank["pid"] for rank in left().values()]
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_program_alone_is_the_only_rank_and_its_last_value_is_recorded():
    code, record = run("one")
    assert (code, record.status, record.arm) == (0, "ok", "solo")
    assert record.program
    assert (record.program["value"], record.program["epochs"], record.program["samples"]) == (0.5, 2, 200)
    assert left()[0] | {"pid": 0, "MASTER_PORT": "", "OMP_NUM_THREADS": ""} == {
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"},
        **{
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "",
            "TORCHELASTIC_RUN_ID": "one",
            "OMP_NUM_THREADS": "",
            "pid": 0,
        },
    }


@pytest.mark.parametrize(
    ("mode", "flags", "reason"),
    [
        ("hang", ["--time-limit", "1"], "took longer than 1 s"),
        ("{folder", [], "has a brace without its pair"),
        ("{lr}", [], "unknown name {lr}"),
    ],
)
def test_program_that_fails_alone_has_its_reason(mode, flags, reason, capfd):
    command = f"python ddp.py {Path.cwd()} {mode}"
    code = train.main(["--command", command, "--metric", "loss", "--name", "one", *flags])
    assert code == (1 if mode == "hang" else 2)
    assert reason in capfd.readouterr().err
    wait_until_no_process_is_left()


def test_two_workers_get_the_environment_of_torchrun_and_are_compared_with_one_process(ray_cluster):
    assert run("one")[0] == 0
    code, record = run("two", "--num-workers", "2")
    assert (code, record.status, record.arm, record.num_workers) == (0, "ok", "ray", 2)
    ranks = left()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS")
    assert {rank: [of[name] for name in names] for rank, of in ranks.items()} == {
        0: ["0", "0", "2", "2", "0", "1"],
        1: ["1", "1", "2", "2", "0", "1"],
    }
    assert ranks[0]["MASTER_PORT"] == ranks[1]["MASTER_PORT"]
    assert {of["TORCHELASTIC_RUN_ID"] for of in ranks.values()} == {"two"}
    assert record.program
    assert (record.program["value"], len(record.program["memory_bytes"])) == (0.5, 2)
    assert Path("runs/two/ranks/1/log").read_text().count("loss") == 2
    assert compare.main([]) == 0
    [program] = json.loads(Path("runs/report/report.json").read_text())["programs"]
    assert [row["num_workers"] for row in program["runs"]] == [0, 2]
    assert program["runs"][1]["speedup"] > 0
    assert "batch per worker" in Path("runs/report/report.md").read_text()


@pytest.mark.parametrize(
    ("mode", "flags", "reason"),
    [
        ("fail", [], "rank 1 ended with exit code 3: a reason"),
        ("memory", ["--memory-limit", "200MiB"], "rank 1 out of memory"),
        ("hang", ["--time-limit", "3"], "took longer than 3 s"),
    ],
)
def test_first_rank_that_fails_ends_the_others_and_is_the_reason(mode, flags, reason, ray_cluster):
    code, record = run("two", "--num-workers", "2", *flags, mode=mode)
    assert (code, record.status) == (1, "failed")
    assert reason in record.reason
    wait_until_no_process_is_left()


def test_port_that_another_process_took_is_replaced(ray_cluster, folder):
    code, record = run("two", "--num-workers", "2", mode="taken")
    assert (code, record.status) == (0, "ok")
    assert (folder / "tried").read_text() != left()[0]["MASTER_PORT"]


def test_rank_whose_process_is_killed_is_named(ray_cluster):
    def kill() -> None:
        deadline = time.monotonic() + 120
        while 1 not in left() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(left()[1]["pid"], 9)

    thread = threading.Thread(target=kill)
    thread.start()
    code, record = run("two", "--num-workers", "2", mode="hang")
    thread.join()
    assert code == 1
    assert "rank 1 killed" in record.reason
    wait_until_no_process_is_left()
