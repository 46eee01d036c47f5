"""The spread over seeds against numbers worked out by hand, from a run that train.py made."""
# ruff: noqa: RUF001 - the report writes a true minus

import json
from pathlib import Path

import forks

from sp500.report import terminal
from sp500.report.models import scores
from sp500.runs.store import RunStore

ROOT = Path(__file__).parents[2]
FLAGS = ("--model.kind", "linear", "--data.start", "2016-01-01", "--data.window", "5", "--train.epochs", "3")


def test_run_with_several_seeds_has_a_row_with_their_mean_and_range(tmp_path: Path) -> None:
    command = [str(ROOT / "experiments" / "train.py"), "--runs-dir", str(tmp_path), "--name", "s"]
    done = forks.run([*command, *FLAGS, "--seeds", "3", "--json"])
    assert done.returncode == 0, done.stderr
    seeds = json.loads(done.stdout)["seeds"]
    assert [seed["seed"] for seed in seeds] == [seeds[0]["seed"] + step for step in range(3)]
    records = RunStore(tmp_path).scan().records
    table = scores.seeds_table(records)
    assert table is not None
    ((run, count, gain, _, kept),) = [row.cells for row in table.rows]
    gains = [100 * seed["test"]["improvement"]["value"] for seed in seeds]
    mean = sum(gains) / 3
    assert (run, count, kept) == ("s", "3", str(sum(seed["best_epoch"] == 0 for seed in seeds)))
    assert abs(float(gain.split("%")[0].replace("−", "-")) - mean) < 0.0051
    assert f"over 3 seeds: Against naive {gain}, " in terminal.text(records[0], tmp_path)


def test_runs_with_one_seed_make_no_table() -> None:
    assert scores.seeds_table([]) is None
