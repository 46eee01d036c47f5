"""`sp500 jobs forecast` as a user calls it, on runs that a law made."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import forks
import pytest

from sp500.runs.record import Machine, RunRecord, Seconds
from sp500.runs.store import Run

ROOT = Path(__file__).parents[2]
Forecast = Callable[..., subprocess.CompletedProcess[str]]
KEYS = {"workers", "seconds", "seconds_low", "seconds_high", "speedup", "efficiency", "cost"}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of the scale experiment with 1 and 2 workers on nodes of a cluster: 100 and 60 seconds after 20."""
    cluster = {"CPU": 8.0, "nodes": 3.0, "hosts": 3.0, "worker_nodes": 2.0, "worker_CPU": 4.0}
    cluster |= {"worker_GPU": 0.0, "worker_memory": 16.0 * 2**30}
    for workers, took in ((1, 100.0), (2, 60.0)):
        record = RunRecord(
            name=f"scale-{workers}",
            experiment="scale",
            arm="ray",
            status="ok",
            config={},
            fingerprint="f",
            seed=0,
            started=datetime(2026, 1, 5, tzinfo=UTC),
            finished=datetime(2026, 1, 5, 1, workers, tzinfo=UTC),
            seconds=Seconds(setup=20, train=took, total=20 + took),
            samples=1000,
            num_workers=workers,
            machine=Machine(cpus=4, memory_bytes=2**34, threads=1, system="test", cluster=cluster),
            versions={},
        )
        (tmp_path / record.name).mkdir()
        Run(tmp_path / record.name).write_record(record)
    return tmp_path


@pytest.fixture
def forecast() -> Forecast:
    """Runs the verb to its end."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return forks.run(["sp500", "jobs", "forecast", *map(str, words)], cwd=ROOT)

    return run


def test_json_has_a_row_per_number_of_workers(forecast: Forecast, runs: Path) -> None:
    done = forecast("--experiment", "scale", "--workers", 1, 2, 4, 8, 16, "--runs-dir", runs, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [row["workers"] for row in found["rows"]] == [1, 2, 4, 8, 16]
    assert all(set(row) >= KEYS for row in found["rows"])
    # 80 of the 100 seconds divide, 20 wait in line, 20 start.
    assert [round(row["seconds"]) for row in found["rows"]] == [120, 80, 60, 50, 45]
    assert found["currency"] == "USD"
    assert found["backtest"]["predicted"] == 2


def test_text_is_a_table_with_the_runs_the_test_and_the_date_of_the_rates(forecast: Forecast, runs: Path) -> None:
    done = forecast("--workers", 4, "--runs-dir", runs)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split("  ")[0] == "Workers"
    assert lines[1].split()[:2] == ["4", "60"]
    assert "scale-1, scale-2" in done.stdout
    assert "Tested on what is known: fitted on 1 worker, the forecast for 2 is" in done.stdout
    assert "Rates of 2024-12-01, assumptions" in done.stdout


def test_no_runs_are_said_before_the_numbers_that_are_assumed(forecast: Forecast, tmp_path: Path) -> None:
    done = forecast("--runs-dir", tmp_path / "gone")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].startswith(f"The folder {tmp_path / 'gone'} does not exist. No run of scale ")
    assert lines[1] == ""
    assert lines[2].startswith("Workers")
    assert "No run" not in "".join(lines[1:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workers", 0, 2, -1), "ConfigError: --workers"),
        (("--size", 0), "ConfigError: --size: "),
        (("--experiment", "sail"), "sail"),
        (("--rates", "nowhere.yaml"), "--rates nowhere.yaml: cannot be read"),
        (("--node-type", "moon"), "--node-type moon: the table has laptop, general, a100, h100"),
    ],
)
def test_wrong_flag_exits_2_and_says_what(forecast: Forecast, words: tuple[object, ...], said: str) -> None:
    done = forecast(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "pydantic" not in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gpu_hour: 2.93", "gpu_hr: 2.93", "unknown key types.a100.gpu_hr; did you mean types.a100.gpu_hour?"),
        ("alone: laptop", "alone: mine", "rule: alone is 'mine'; expected a name under types: laptop, general"),
    ],
)
def test_wrong_table_is_refused_with_file_key_and_what_was_expected(
    forecast: Forecast, tmp_path: Path, old: str, new: str, said: str
) -> None:
    file, text = tmp_path / "rates.yaml", (ROOT / "cluster" / "rates.yaml").read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    done = forecast("--rates", file)
    assert done.returncode == 2
    assert f"--rates {file}: " in done.stderr
    assert said in done.stderr


def test_rates_of_ones_own_are_used(forecast: Forecast, runs: Path, tmp_path: Path) -> None:
    file, text = tmp_path / "rates.yaml", (ROOT / "cluster" / "rates.yaml").read_text()
    file.write_text(text.replace("USD", "EUR").replace("0.0316", "3.6").replace("0.00424", "0"))
    (row,) = json.loads(forecast("--workers", 4, "--runs-dir", runs, "--rates", file, "--json").stdout)["rows"]
    # 4 nodes of 4 CPUs, a head of 1 and a submitter of a quarter: 17.25 CPUs at 3.6 an hour, for 60 seconds.
    assert row["cost"] == pytest.approx(17.25 * 3.6 / 60)
