"""Progress of a run, from files that a real training and a real search left, and a given clock.

Expected numbers are literals: sums and quotients of the recorded lines, by a calculator.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from sp500.errors import ConfigError
from sp500.progress import Meter, RunProgress, Unit
from sp500.runs import progress as run_progress
from sp500.runs.checksums import append_line
from sp500.runs.record import Machine, PlannedSearch, RunRecord, Seconds
from sp500.runs.store import Run

RECORDED = Path(__file__).parent / "recorded"
BEGUN = datetime(2026, 11, 23, 10, 50, 52, 951571, UTC)
SEARCHED = datetime(2026, 11, 23, 10, 50, 58, 188085, UTC)
LAST_EPOCH = datetime(2026, 11, 23, 10, 51, 42, 652030, UTC)
LAST_TRIAL = datetime(2026, 11, 23, 10, 51, 21, 451173, UTC)
TRAIN = {"epochs": 6, "early_stop_patience": 0}
MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A run that goes on, begun at a time, with the recorded lines of its epochs or trials."""

    def make(experiment: str = "train", *, begun: datetime = BEGUN, searched: datetime | None = None, **more) -> Run:
        run = Run(tmp_path / "run")
        run.path.mkdir()
        record = RunRecord(
            name="run", experiment=experiment, arm="solo", status="stopped", seed=0, fingerprint="0",
            config={"train": TRAIN | more.get("train", {})}, started=begun, finished=begun, versions={},
            seconds=Seconds(setup=0, train=0, total=0),
            machine=Machine(cpus=1, memory_bytes=1, threads=1, system="Linux"),
            planned=PlannedSearch(trials=12, at=searched) if searched else None,
        )  # fmt: skip
        run.write_start(record)
        run.write_config({"seeds": more.get("seeds", 1)})
        name = "epochs.jsonl" if experiment == "train" else "trials.jsonl"
        shutil.copy(RECORDED / name, run.path / name)
        return run

    return make


def progress_of(run: Run) -> RunProgress:
    found = run_progress.read(run)
    assert found is not None
    return found[1]


def test_training_tells_epoch_speed_best_loss_and_the_time_that_is_left(make_run: MakeRun) -> None:
    run = make_run()
    begun, progress = run_progress.read(run)
    assert begun == BEGUN
    assert (progress.kind, progress.done, progress.total, progress.at_most) == ("epoch", 3, 6, False)
    assert progress.samples_per_second == pytest.approx(423.5671760318589, rel=1e-12)
    assert progress.best_loss == 2.0333598791487115
    assert progress.updated == LAST_EPOCH.timestamp()
    # Three epochs of 14.300541726333 s, less what has passed since the last one ended; it is late after that.
    for passed, left in ((0.0, 42.901625179), (10.0, 32.901625179)):
        assert progress.eta_seconds(LAST_EPOCH.timestamp() + passed) == pytest.approx(left, abs=1e-6)
    assert progress.eta_seconds(LAST_EPOCH.timestamp() + 60.0) is None


def test_search_tells_trial_speed_best_loss_and_the_time_that_is_left(make_run: MakeRun) -> None:
    progress = progress_of(make_run("tune", searched=SEARCHED))
    assert (progress.kind, progress.done, progress.total, progress.at_most) == ("trial", 5, 12, False)
    assert progress.samples_per_second == pytest.approx(9859.396138638172, rel=1e-9)
    assert progress.best_loss == 0.4133556833656954
    assert progress.updated == LAST_TRIAL.timestamp()
    # Seven of twelve are left, and five took 23.263088 s by the wall clock.
    assert progress.eta_seconds(LAST_TRIAL.timestamp() + 2.5) == pytest.approx(32.5683232 - 2.5, abs=1e-6)


@pytest.mark.parametrize(
    ("train", "total_left"),
    [
        ({"early_stop_patience": 5}, 42.901625179),
        ({"max_steps": 100}, 42.901625179),
        # Nine epochs: three of this fit, and at most six of the refit.
        ({"refit": True, "early_stop_patience": 0}, 128.704875537),
    ],
)
def test_training_that_may_end_sooner_says_at_most(make_run: MakeRun, train: dict, total_left: float) -> None:
    progress = progress_of(make_run(train=train))
    assert progress.at_most
    assert progress.eta_seconds(LAST_EPOCH.timestamp()) == pytest.approx(total_left, abs=1e-6)


def test_time_left_of_a_training_covers_its_further_seeds(make_run: MakeRun) -> None:
    progress = progress_of(make_run(seeds=3))
    # 3 + 2 * 6 epochs.
    assert progress.eta_seconds(LAST_EPOCH.timestamp()) == pytest.approx(15 * 14.300541726333, abs=1e-6)


def test_attempt_without_an_epoch_of_its_own_has_no_speed_and_keeps_the_best_loss(make_run: MakeRun) -> None:
    progress = progress_of(make_run(begun=LAST_EPOCH + timedelta(hours=1)))
    assert (progress.done, progress.samples_per_second, progress.ends) == (3, None, None)
    assert progress.best_loss == 2.0333598791487115
    assert progress.updated == (LAST_EPOCH + timedelta(hours=1)).timestamp()


def test_resumed_training_counts_the_speed_of_its_present_attempt_alone(make_run: MakeRun) -> None:
    # The third epoch, of 14.079743633 s, began after this start; the second began before.
    progress = progress_of(make_run(begun=LAST_EPOCH - timedelta(seconds=14.2)))
    assert progress.samples_per_second == pytest.approx(5828 / 13.404187819999834, rel=1e-12)
    assert progress.eta_seconds(LAST_EPOCH.timestamp()) == pytest.approx(3 * 14.079743632999907, abs=1e-6)


def test_epoch_that_an_earlier_attempt_began_does_not_measure_this_one(make_run: MakeRun) -> None:
    progress = progress_of(make_run(begun=LAST_EPOCH - timedelta(seconds=14)))
    assert (progress.done, progress.samples_per_second, progress.ends) == (3, None, None)


def test_resumed_search_counts_the_speed_of_its_present_attempt_alone(make_run: MakeRun) -> None:
    # The last of five trials took 7.131289886 s.
    begun = LAST_TRIAL - timedelta(seconds=8)
    progress = progress_of(make_run("tune", searched=begun))
    assert (progress.done, progress.best_loss) == (5, 0.4133556833656954)
    assert progress.samples_per_second == pytest.approx(45872 / 8)
    assert progress.eta_seconds(LAST_TRIAL.timestamp()) == pytest.approx(7 * 8)


@pytest.mark.parametrize(("experiment", "file"), [("train", "epochs.jsonl"), ("tune", "trials.jsonl")])
def test_line_that_is_being_written_does_not_count_and_a_damaged_one_is_reported(make_run, experiment, file) -> None:
    run = make_run(experiment, searched=SEARCHED if experiment == "tune" else None)
    before, whole = progress_of(run), (run.path / file).read_bytes()
    (run.path / file).write_bytes(whole + whole.splitlines()[-1][:-20])
    assert progress_of(run) == before
    (run.path / file).write_bytes(whole.replace(b'"samples":', b'"sampled":', 1))
    with pytest.raises(ConfigError, match=f"{file}, line 1 "):
        run_progress.read(run)


def test_run_without_an_epoch_is_at_none_of_all(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "epochs.jsonl").unlink()
    progress = progress_of(run)
    assert (progress.done, progress.total, progress.ends, progress.best_loss) == (0, 6, None, None)


@pytest.mark.parametrize("experiment", ["scale", "walk_forward", "tune"])
def test_other_experiments_and_a_search_without_trials_do_not_say(make_run: MakeRun, experiment: str) -> None:
    assert run_progress.read(make_run(experiment)) is None


def test_folder_without_a_run_does_not_say_and_seeds_that_are_not_readable_are_reported(make_run, tmp_path) -> None:
    assert run_progress.read(Run(tmp_path / "none")) is None
    run = make_run()
    (run.path / "config.yaml").write_text(yaml.safe_dump({"seeds": "many"}))
    with pytest.raises(ConfigError, match=r"config\.yaml: seeds"):
        run_progress.read(run)


def test_trial_that_failed_counts_as_done_and_its_missing_loss_is_not_the_best(make_run: MakeRun) -> None:
    run = make_run("tune", searched=SEARCHED)
    failed = {"id": "x", "overrides": {}, "status": "failed", "valid_loss": None, "seconds": 1.0}
    failed["finished"] = LAST_TRIAL.isoformat()
    append_line(run.path / "trials.jsonl", json.dumps(failed))
    progress = progress_of(run)
    assert (progress.done, progress.best_loss) == (6, 0.4133556833656954)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None])
def test_loss_that_is_not_finite_is_not_the_best(loss: float | None) -> None:
    meter = Meter("epoch", 3, since=0.0)
    meter.add(Unit(datetime.fromtimestamp(2, UTC), 2.0, samples=10, loss=loss))
    assert meter.progress(1).best_loss is None
    meter.add(Unit(datetime.fromtimestamp(4, UTC), 2.0, samples=10, loss=0.5))
    assert (meter.progress(2).best_loss, meter.progress(2).samples_per_second) == (0.5, 5.0)
    assert meter.progress(2).eta_seconds(4.0) == 2.0
