"""Programs with all their processes: measurements, ends, limits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sp500.programs.output import LONGEST, Lines, Log, Measurement, MetricReader
from sp500.programs.program import End, Limits, Program, Request

HANG = "import time; time.sleep(600)"
FORK = "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    {}\n  os._exit(0)\n"


def start(folder: Path, code: str, *words: str, pattern: str = "", **limits: float) -> Program:
    """Start a program of Python's that all its children are found by: the folder is one of its words."""
    argv = [sys.executable, "-u", "-c", code, str(folder), *words]
    limit = Limits(**{"grace_seconds": 0.5, **limits})  # type: ignore[arg-type]
    return Program(Request(argv, str(folder), {}, str(folder / "log"), "loss", pattern, limit))


def processes_of(folder: Path) -> list[int]:
    """Return the processes whose command names the folder."""
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(folder) in (process.info["cmdline"] or ())
    ]


def run(program: Program) -> tuple[list[Measurement], End]:
    *measured, end = program.events()
    assert isinstance(end, End)
    return [event for event in measured if isinstance(event, Measurement)], end


def test_lines_of_json_are_measurements_with_epoch_and_samples(tmp_path):
    lines = [
        '{"loss": 2}',
        "loss 3",
        '{"other": 1}',
        '{"epoch": 7, "loss": "0.5", "samples": 640}',
        "{broken",
        '{"loss": true}',
        '{"epoch": NaN, "loss": 1, "samples": Infinity}',
    ]
    measured, end = run(start(tmp_path, f"print(*{lines!r}, sep='\\n')"))
    assert measured == [Measurement(2.0, 1), Measurement(0.5, 7, 640), Measurement(1.0, 3)]
    assert (end.cause, end.code, end.reason) == ("exit", 0, "")
    assert (tmp_path / "log").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"Average loss: ([\d.e-]+)", [Measurement(0.25, 1), Measurement(0.125, 2)]),
        (r"epoch (?P<epoch>\d+).*loss: (?P<loss>\S+),", [Measurement(0.25, 3), Measurement(0.125, 4)]),
        (r"epoch (?P<epoch>\d+).*loss: (\S+),", [Measurement(0.25, 3), Measurement(0.125, 4)]),
    ],
)
def test_pattern_finds_the_metric_in_lines(pattern, expected):
    reader = MetricReader("loss", pattern)
    lines = ["epoch 3 Average loss: 0.25, 9/10", "nothing", "epoch 4 Average loss: 0.125, 9/10"]
    assert [found for line in lines if (found := reader.read(line))] == expected


@pytest.mark.parametrize(
    ("code", "limits", "cause", "reason"),
    [
        ("print('bye'); raise SystemExit(3)", {}, "exit", "ended with exit code 3: bye"),
        ("import os; os.kill(os.getpid(), 11)", {}, "exit", r"killed by signal 11 \(SIGSEGV\)"),
        (HANG, {"seconds": 1}, "seconds", "took longer than 1 s"),
        (
            f"import signal; signal.signal(15, signal.SIG_IGN); {HANG}",
            {"seconds": 1},
            "seconds",
            "took longer than 1 s",
        ),
        (f"print('{{\"loss\": NaN}}'); {HANG}", {}, "not_finite", "printed loss = nan at epoch 1"),
        (
            f"x = b'1' * 300_000_000; {HANG}",
            {"memory_bytes": 200 * 2**20},
            "memory",
            "out of memory: .* limit of 200 MiB",
        ),
        (FORK.format(HANG), {}, "exit", ""),
        (
            FORK.format(f"import signal; signal.signal(15, signal.SIG_IGN); {HANG}") + HANG,
            {"seconds": 1},
            "seconds",
            "took",
        ),
    ],
    ids=["code 3", "signal", "hang", "ignores SIGTERM", "nan", "memory", "leaves a child", "hangs with a child"],
)
def test_end_has_its_reason_and_leaves_no_process(code, limits, cause, reason, tmp_path):
    _, end = run(start(tmp_path, code, **limits))
    assert end.cause == cause
    assert re.match(reason, end.reason)
    assert processes_of(tmp_path) == []


def test_line_of_100_mb_neither_fills_memory_nor_hides_the_next_one(tmp_path):
    long = "import sys\nfor _ in range(1000): sys.stdout.write('x' * 100_000)\nprint()\nprint('{\"loss\": 1}')"
    program = start(tmp_path, long)
    supervisor = psutil.Process(program._process.pid)
    largest = 0
    while program._process.poll() is None and supervisor.is_running():
        try:
            largest = max(largest, supervisor.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    measured, end = run(program)
    assert (measured, end.code) == ([Measurement(1.0, 1)], 0)
    assert largest < 100 * 2**20
    assert sum(path.stat().st_size for path in tmp_path.glob("log*")) <= 16 * 2**20


def test_lines_are_cut_from_blocks_at_any_place():
    text = b"one\r\ntwo\rthree\n" + b"x" * (3 * LONGEST) + b"\nfour"
    for size in (1, 7, LONGEST + 1, len(text)):
        lines = Lines()
        got = [line for at in range(0, len(text), size) for line in lines.add(text[at : at + size])] + lines.end()
        assert [line for line in got if line] == ["one", "two", "three", "x" * LONGEST, "four"]


def test_log_keeps_its_last_part(tmp_path):
    log = Log(tmp_path / "log", limit=100)
    for number in range(100):
        log.write(f"{number:09}\n".encode())
    kept = [*(tmp_path / "log.1").read_text().splitlines(), *(tmp_path / "log").read_text().splitlines()]
    assert kept == [f"{number:09}" for number in range(100 - len(kept), 100)]
    assert 5 <= len(kept) <= 10


def test_stop_reaches_a_program_that_runs_and_its_children(tmp_path):
    program = start(tmp_path, FORK.format(HANG) + f"print('{{\"loss\": 1}}')\n{HANG}")
    assert program.read() == [Measurement(1.0, 1)]
    program.stop()
    _, end = run(program)
    assert (end.cause, end.reason) == ("stopped", "stopped on request")
    assert processes_of(tmp_path) == []


def test_program_that_is_none_says_so(tmp_path):
    request = Request(["no-such-program"], str(tmp_path), {}, str(tmp_path / "log"), "loss")
    _, end = run(Program(request))
    assert (end.cause, end.reason) == ("start", "no-such-program cannot be started: No such file or directory")


def test_log_that_cannot_be_written_is_the_reason(tmp_path, make_disk):
    (tmp_path / "log").mkdir()
    _, end = run(start(tmp_path, HANG))
    assert end.cause == "lost"
    assert end.reason.startswith(f"its log {tmp_path / 'log'}: cannot be written (Is a directory")
    full = make_disk("size=64k")
    _, end = run(start(full, f"print('x' * 200_000, flush=True); {HANG}"))
    assert end.cause == "lost"
    assert "No space left on device" in end.reason
    assert processes_of(full) == []


OWNER = """
import os, sys
from pathlib import Path
from sp500.programs.program import Program, Request

code = "import time\\nprint('{{\\"loss\\": 1}}')\\ntime.sleep(600)"
folder = sys.argv[1]
argv = [sys.executable, "-u", "-c", code, folder]
program = Program(Request(argv, folder, {}, folder + "/log", "loss"))
program.read()
print("runs", flush=True)
program.read()
"""


@pytest.mark.parametrize("victim", ["owner", "supervisor"])
def test_kill_of_what_started_it_ends_it(victim, tmp_path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("{{", "{").replace("}}", "}"), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert owner.stdout
    assert owner.stdout.readline() == b"runs\n"
    [supervisor] = psutil.Process(owner.pid).children()
    os.kill(owner.pid if victim == "owner" else supervisor.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(tmp_path) == []
