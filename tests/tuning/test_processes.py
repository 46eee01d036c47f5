"""Packs in processes of this machine: the results of one process, whatever becomes of the processes."""

import os
import threading
import time

import psutil
import pytest

from sp500.config import RunConfig, TrainConfig
from sp500.tasks.settings import SyntheticConfig
from sp500.tuning import trial_data
from sp500.tuning.axes import choices
from sp500.tuning.limits import Limits
from sp500.tuning.packing import processes
from sp500.tuning.packing.packs import PackQueue
from sp500.tuning.suggest import suggester

AXES = {"model.hidden": (4, 8), "train.lr": (1e-3, 1e-2), "model.dropout": (0.0, 0.5)}


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=256, features=8),
        train=TrainConfig(epochs=2, early_stop_patience=0),
    )


def searched(base, axes=AXES, *, count=2, limits=None, then=None):
    """Results by id in the order in which they came; `then` is called with their number after each."""
    suggested = suggester("grid", base, choices("test", axes), None, 0)
    found = {}

    def keep(result, waiting):
        assert result.id not in found
        found[result.id] = result
        if then:
            then(len(found))

    made = trial_data.prepare([base])
    limits = limits or Limits(pack=2)
    processes.run(made, suggested, limits, at_once=suggested.total, processes=count, on_result=keep)
    return found


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_processes_give_the_results_of_this_process(base):
    before = children()
    apart, here = searched(base), searched(base, count=1)
    assert len(apart) == 8
    assert {name: one.valid_loss for name, one in apart.items()} == {name: one.valid_loss for name, one in here.items()}
    assert {one.pack for one in apart.values()} == {2}
    assert children() == before


def test_pack_whose_process_is_killed_is_tried_again_one_by_one(base):
    # One of each two is done early: its result comes, and the process dies, while the other still trains.
    before = children()

    def kill(number: int) -> None:
        if number == 1:
            for child in set(children()) - set(before):
                child.kill()

    found = searched(base, {"train.lr": (1e-3, 1e-2), "train.epochs": (3, 200)}, then=kill)
    assert {one.status for one in found.values()} == {"ok"}
    assert {one.pack for one in found.values()} == {1, 2}


def test_trial_whose_process_dies_again_is_listed_with_the_reason(base, monkeypatch):
    monkeypatch.setattr(processes.packs, "run_with_watchdog", lambda *_: os._exit(7))
    found = searched(base, {"train.lr": (1e-3, 1e-2)})
    assert [(one.status, one.reason) for one in found.values()] == [
        ("failed", "its process ended with exit code 7")
    ] * 2


def test_trial_over_its_time_fails_and_others_do_not(base):
    axes = {"train.epochs": (2, 1_000_000), "train.lr": (1e-3,)}
    found = searched(base, axes, limits=Limits(pack=2, timeout=3.0))
    reasons = {one.overrides["train.epochs"]: one.reason for one in found.values()}
    assert reasons[2] == ""
    assert "longer than 3 s" in reasons[1_000_000]


def test_process_over_its_memory_fails_that_trial_alone(base):
    axes = {"model.hidden": (8, 20_000), "train.lr": (1e-3,)}
    found = searched(base, axes, limits=Limits(memory=700 * 2**20))
    assert {one.overrides["model.hidden"]: one.status for one in found.values()} == {8: "ok", 20_000: "failed"}
    assert "out of memory" in next(one.reason for one in found.values() if one.status == "failed")


def test_interrupted_search_leaves_no_process(base):
    before = children()

    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(base, {"train.lr": (1e-3, 1e-2), "train.epochs": (2, 1_000_000)}, then=interrupt)
    assert children() == before


def test_processes_end_with_their_parent(base):
    # The parent of the packs is a child of this process, which is killed as the kernel does when memory runs out.
    pid = os.fork()
    if not pid:
        searched(base, {"train.lr": (1e-3, 1e-2), "train.epochs": (1_000_000,)}, limits=Limits(pack="off"))
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
    assert processes.process_count(several) == 1
    assert processes.process_count(base) == processes.usable_cores()


def test_queue_hands_out_each_trial_once_and_a_failed_pack_one_by_one(base):
    queue = PackQueue(suggester("grid", base, choices("test", AXES), None, 0), 4, 8, 2)
    first, second = queue.take(), queue.take()
    assert (len(first), len(second), queue.take()) == (4, 4, [])
    assert queue.waiting == {trial.id for trial in first + second}
    queue.waiting.discard(first[0].id)
    assert queue.retry(first) == []
    assert [queue.take() for _ in range(4)] == [[first[1]], [first[2]], [first[3]], []]
    assert queue.retry([second[0]]) == [second[0]]
