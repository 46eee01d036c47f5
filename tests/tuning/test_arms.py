"""Trials one after another, and packs in processes: the results of one process, whatever becomes of the processes."""

import os
import threading
import time

import psutil
import pytest

from sp500.config import DataConfig, RunConfig, TrainConfig
from sp500.machine import system
from sp500.runs.trials import Ledger, TrialResult, read_trials
from sp500.tasks.settings import SyntheticConfig
from sp500.training.loop import FitResult
from sp500.training.pause import PausedTraining
from sp500.tuning import sequential, space, trial_data
from sp500.tuning.arm import Collector
from sp500.tuning.axes import choices
from sp500.tuning.limits import Limits, TrialTimeout, deadline
from sp500.tuning.packing import scheduler
from sp500.tuning.packing.scheduler import PackedArm
from sp500.tuning.space import candidates
from sp500.tuning.stopper import StopRule
from sp500.tuning.suggest import Grid

LOST_RING = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A ring within a callback of the garbage collector is printed by Python and comes again."""
AXES = {"model.hidden": (4, 8), "train.lr": (1e-3, 1e-2), "model.dropout": (0.0, 0.5)}


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=256, features=8),
        train=TrainConfig(epochs=2, early_stop_patience=0),
        data=DataConfig(seed=3),
    )


@pytest.fixture(scope="module")
def data(base):
    return trial_data.prepare([base])[trial_data.key(base)]


def collector(arm, folder, axes=AXES, on_result=lambda result, running: None) -> Collector:
    trials = candidates(arm.base, choices("test", axes))
    suggested = Grid(trials, len(trials.list_grid()), 0)
    folder.mkdir(exist_ok=True)
    return Collector(suggested, Ledger(folder), arm, on_result)


def searched(base, folder, axes=AXES, *, count=2, limits=None, then=None):
    """Results by id in the order in which they came; `then` is called with their number after each."""
    data, limits = trial_data.prepare([base]), limits or Limits(pack=2)
    arm = PackedArm(base, data, limits)
    arm.cores = count
    found = {}

    def keep(result, running):
        assert result.id not in found
        found[result.id] = result
        if then:
            then(len(found))

    arm.run(collector(arm, folder, axes, keep))
    return found


def children() -> list[psutil.Process]:
    """Return what runs below this process, but for the tracker that Python starts with the first spawned one."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.parametrize("linux", [True, False], ids=["fork", "spawn"])
def test_processes_give_the_results_of_this_process(base, tmp_path, monkeypatch, linux):
    before = children()
    monkeypatch.setattr(system, "LINUX", linux)
    apart, here = searched(base, tmp_path / "apart"), searched(base, tmp_path / "here", count=1)
    assert len(apart) == 8
    assert {name: one.valid_loss for name, one in apart.items()} == {name: one.valid_loss for name, one in here.items()}
    assert {one.pack for one in apart.values()} == {2}
    assert children() == before


def test_pack_whose_process_is_killed_is_tried_again_one_by_one(base, tmp_path):
    # One of each two is done early: its result comes, and the process dies, while the other still trains.
    before = children()

    def kill(number: int) -> None:
        if number == 1:
            for child in set(children()) - set(before):
                child.kill()

    found = searched(base, tmp_path, {"train.lr": (1e-3, 1e-2), "train.epochs": (3, 200)}, then=kill)
    assert {one.status for one in found.values()} == {"ok"}
    assert {one.pack for one in found.values()} == {1, 2}


def test_trial_whose_process_dies_again_is_listed_with_the_reason(base, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "run_pack_with_watchdog", lambda *_: os._exit(7))
    found = searched(base, tmp_path, {"train.lr": (1e-3, 1e-2)})
    assert [(one.status, one.reason) for one in found.values()] == [
        ("failed", "its process ended with exit code 7")
    ] * 2


def test_trial_over_its_time_fails_and_others_do_not(base, tmp_path):
    axes = {"train.epochs": (2, 1_000_000), "train.lr": (1e-3,)}
    found = searched(base, tmp_path, axes, limits=Limits(pack=2, timeout=3.0))
    reasons = {one.overrides["train.epochs"]: one.reason for one in found.values()}
    assert reasons[2] == ""
    assert "longer than 3 s" in reasons[1_000_000]


@LOST_RING
def test_deadline_whose_ring_a_finalizer_swallowed_rings_again(monkeypatch):
    monkeypatch.setattr("sp500.tuning.limits.RING_AGAIN_SECONDS", 0.1)
    rings = list[int]()

    class Slow:
        def __del__(self):
            rings.append(1)
            time.sleep(60)

    with pytest.raises(TrialTimeout, match=r"0\.1 s"), deadline(0.1):
        hang(id(Slow()), None)
    assert rings == [1]


@LOST_RING
def test_time_before_a_kill_counts_for_a_trial_that_goes_on(base, data, tmp_path, monkeypatch):
    endless = space.trial(base, {"train.epochs": 1_000_000})
    monkeypatch.setattr(PausedTraining, "position", lambda self: (1, 60.0))
    limits = Limits(pack="off", timeout=60.0, stop=StopRule("asha", 1_000))
    *_, report = sequential.run_to_rungs(data, endless, limits, tmp_path)
    assert (report.result.status, report.rung) == ("failed", None)
    assert 60 < report.result.seconds < 120


def test_process_over_its_memory_fails_that_trial_alone(base, tmp_path):
    axes = {"model.hidden": (8, 20_000), "train.lr": (1e-3,)}
    found = searched(base, tmp_path, axes, limits=Limits(memory=700 * 2**20))
    assert {one.overrides["model.hidden"]: one.status for one in found.values()} == {8: "ok", 20_000: "failed"}
    assert "out of memory" in next(one.reason for one in found.values() if one.status == "failed")


def test_interrupted_search_leaves_no_process(base, tmp_path):
    before = children()

    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(base, tmp_path, {"train.lr": (1e-3, 1e-2), "train.epochs": (2, 1_000_000)}, then=interrupt)
    assert children() == before


def test_processes_end_with_their_parent(base, tmp_path):
    # The parent of the packs is a child of this process, which is killed as the kernel does when memory runs out.
    pid = os.fork()
    if not pid:
        searched(base, tmp_path, {"train.lr": (1e-3, 1e-2), "train.epochs": (1_000_000,)}, limits=Limits(pack="off"))
        os._exit(0)
    packs, started = list[psutil.Process](), time.monotonic()
    while len(packs) < 2:
        assert time.monotonic() - started < 120
        packs = psutil.Process(pid).children()
        threading.Event().wait(0.05)
    psutil.Process(pid).kill()
    os.waitpid(pid, 0)
    gone, alive = psutil.wait_procs(packs, timeout=60)
    assert (len(gone), alive) == (2, [])


def test_trials_on_several_threads_stay_in_this_process(base):
    several = base.model_copy(update={"train": base.train.model_copy(update={"threads": 2})})
    assert scheduler.count_processes(several) == 1
    assert scheduler.count_processes(base) == scheduler.usable_cores()


def test_collector_hands_out_each_trial_once_and_a_lost_pack_one_by_one(base, tmp_path):
    running = []
    arm = PackedArm(base, {}, Limits(pack=4))
    trials = collector(arm, tmp_path, on_result=lambda result, left: running.append(left))
    first, second = trials.take(), trials.take()
    assert (len(first), len(second), trials.take()) == (4, 4, [])
    trials.add(TrialResult(id=first[0].id, overrides=first[0].overrides, status="ok"))
    trials.lose(first, "killed")
    assert [trials.take() for _ in range(4)] == [[first[1]], [first[2]], [first[3]], []]
    trials.lose([first[1]], "killed")
    assert trials.running == {trial.id for trial in first[2:] + second}
    assert running == [7, 6]
    kept = read_trials(tmp_path)
    assert [(one.id, one.status, one.reason) for one in kept] == [
        (first[0].id, "ok", ""),
        (first[1].id, "failed", "killed"),
    ]


def test_result_says_what_was_reached(base, data):
    result = sequential.run_trial(data, space.trial(base, {"model.hidden": 8}))
    assert (result.status, result.epochs, result.samples) == ("ok", 2, 2 * len(data.dataset.train))
    assert 0 < result.valid_loss < 10
    assert result.score == result.valid_loss / data.naive_loss


def test_trial_does_not_depend_on_the_trials_before_it(base, data):
    trials = space.grid(base, {"model.dropout": (0.0, 0.5), "train.seed": (0, 1)})
    forwards = {trial.id: sequential.run_trial(data, trial).valid_loss for trial in trials}
    backwards = {trial.id: sequential.run_trial(data, trial).valid_loss for trial in reversed(trials)}
    assert forwards == backwards


def test_diverging_trial_says_why(base, data):
    result = sequential.run_trial(data, space.trial(base, {"train.lr": 1e30, "train.clip": 0.0}))
    assert result.status == "failed"
    assert "diverged" in result.reason


def hang(data: object, trial: object) -> FitResult:
    time.sleep(60)
    raise AssertionError


def starve(data: object, trial: object) -> FitResult:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 160000000000 bytes")


@LOST_RING
@pytest.mark.parametrize(
    ("fitted", "reason"), [(hang, "took longer than 0.2 s"), (starve, "out of memory: DefaultCPUAllocator")]
)
def test_trial_that_hangs_or_takes_too_much_is_a_failure(base, data, fitted, reason):
    started = time.monotonic()
    result = sequential.run_trial(data, space.trial(base, {"model.hidden": 8}), 0.2, fitted)
    assert (result.status, result.valid_loss) == ("failed", None)
    assert reason in result.reason
    assert time.monotonic() - started < 30


def test_data_that_cannot_be_made_fails_its_own_trials():
    base = RunConfig(data=DataConfig(tickers=("AAPL",), start="2015-01-01"))
    configs = [space.trial(base, {"data.window": window}).config for window in (5, 100_000)]
    found = trial_data.prepare(configs)
    short, long = (found[trial_data.key(config)] for config in configs)
    assert short.naive_loss > 0
    assert "too_short" in long
    failed = sequential.run_trial(long, space.trial(base, {"data.window": 100_000}))
    assert (failed.status, failed.reason) == ("failed", long)
