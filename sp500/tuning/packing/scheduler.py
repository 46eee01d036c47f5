"""Packs of configs that train together: their order, their processes, and the handling of failures.

A pack's process is a fork of this one: it starts in milliseconds with the libraries and the data that this process has
loaded. On macOS, where libraries do not survive a fork, it is a fresh process: it takes seconds, and gets a copy of the
data. A process takes one thread, so there are as many as cores. On a GPU, or if a trial asks for several threads,
packs run one after another in this process, since CUDA and OpenMP do not survive a fork.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path
from pkgutil import resolve_name

import cloudpickle

from sp500.config import LATER_KEYS, RunConfig, TrainConfig
from sp500.machine import system
from sp500.machine.cores import usable_cores
from sp500.machine.memory import limit_memory
from sp500.runs.trials import TrialResult
from sp500.training.worker import device
from sp500.tuning.arm import Collector, Report
from sp500.tuning.limits import Limits, PackSize, deadline
from sp500.tuning.sequential import STATES, ConfigArm, run_to_rungs, run_trial
from sp500.tuning.space import ConfigTrial
from sp500.tuning.trial_data import Datasets, TrialData

# Settings that are values, not shapes: members of a pack may differ in them.
FREE = {
    "train": {"lr", "weight_decay", "clip", "seed", "epochs", "early_stop_patience"},
    "model": {"dropout"},
}
# A larger pack takes less time per member, until a layer's activations outgrow a core's cache; and what is left at the
# end is spread over cores better when packs are small. Width 128, batch 256: 3 members take 1.2 ms each per step, 6
# take 1.04, 9 take 0.96, 18 take 0.95; width 32: 3 take 0.4, 9 take 0.26, 18 take 0.23.
CACHE_BYTES = 1_200_000
MOST = 18
# A call into C that does not return is ended with its process this long after its deadline.
GRACE_SECONDS = 10


class PackedArm(ConfigArm):
    """Packs of configs in processes of this machine, without Ray."""

    name = "packed"

    def __init__(self, base: RunConfig, datasets: Datasets, limits: Limits, states: Path = STATES) -> None:
        super().__init__(base, datasets, limits, states)
        self.cores = count_processes(base)

    def split(self, trials: Sequence[ConfigTrial]) -> list[list[ConfigTrial]]:
        """Return packs for as many processes as run at once."""
        return split_into_packs(trials, self.limits.pack, self.limits.spread(self.cores))

    def run(self, collector: Collector[ConfigTrial]) -> None:
        """Train packs side by side, or one after another if only one runs at once."""
        if self.cores > 1:
            self._run_in_processes(collector)
            return
        if self.limits.memory:
            limit_memory(self.limits.memory)
        while pack := collector.take():
            if self.limits.stop:
                self.run_to_end(collector, pack)
                continue
            for results in run_pack(self.data(pack), pack, self.limits.timeout, self.limits.halving):
                for result in results:
                    collector.add(result)

    def _run_in_processes(self, collector: Collector[ConfigTrial]) -> None:
        running: dict[Connection, tuple[BaseProcess, list[ConfigTrial]]] = {}
        try:
            while True:
                while len(running) < self.cores and (pack := collector.take()):
                    connection, process = _start(self.data(pack), pack, self.limits, self.states)
                    running[connection] = process, pack
                if not running:
                    return
                for connection in [ready for ready in wait(list(running)) if isinstance(ready, Connection)]:
                    try:
                        _receive(connection, collector)
                    except (EOFError, OSError):  # the process has ended, perhaps in the middle of a result
                        process, pack = running.pop(connection)
                        process.join()
                        collector.lose(pack, f"its process ended with exit code {process.exitcode}")
        finally:
            for process, _ in running.values():
                process.kill()  # what it had finished is in the ledger
                process.join()


def split_into_packs(trials: Sequence[ConfigTrial], size: PackSize, slots: int = 1) -> list[list[ConfigTrial]]:
    """Return trials in packs for so many processes, the longest work first, so that little is left at the end."""
    groups: dict[str, list[ConfigTrial]] = {}
    for trial in trials:
        shape = _shape(trial.config) if size != "off" and can_pack(trial.config) else trial.id
        groups.setdefault(shape, []).append(trial)
    pieces = []
    for alike in groups.values():
        # Neighbours draw the same dropout masks, and draw them once.
        ordered = sorted(alike, key=lambda trial: (trial.config.train.seed, trial.config.model.dropout_rate))
        most = size if isinstance(size, int) else min(best_pack_size(alike[0].config), -(-len(trials) // slots))
        count = -(-len(ordered) // most)
        even = -(-len(ordered) // count)
        pieces += [ordered[first : first + even] for first in range(0, len(ordered), even)]
    return sorted(pieces, key=_work, reverse=True)


def can_pack(config: RunConfig) -> bool:
    """Return whether configs of this kind can train as one model."""
    plain = all(getattr(config.train, key) == TrainConfig.model_fields[key].default for key in LATER_KEYS)
    return plain and config.model.packs and config.task_kind.packs


def best_pack_size(config: RunConfig) -> int:
    """Return the number of members of a pack, from a table of measurements."""
    width = getattr(config.model, "hidden", 1)
    bytes_each = config.batch_size * width * (8 if config.train.dtype == "float64" else 4)
    return max(4, min(MOST, CACHE_BYTES // bytes_each))


def run_pack_with_watchdog(
    data: TrialData | str, trials: Sequence[ConfigTrial], limits: Limits
) -> Iterator[list[TrialResult]]:
    """Run a pack in a process of its own, which is killed if a call into C does not return long after the deadline."""
    results, left = run_pack(data, trials, limits.timeout, limits.halving), len(trials)
    while left:
        with _watch(limits.timeout, left):
            finished = next(results)
        left -= len(finished)
        yield finished


def run_to_rungs_with_watchdog(
    data: TrialData | str, trial: ConfigTrial, limits: Limits, states: Path
) -> Iterator[Report]:
    """Run a trial from rung to rung in a process of its own, which is killed likewise."""
    reports = run_to_rungs(data, trial, limits, states)
    while True:
        with _watch(limits.timeout, 1):
            report = next(reports)
        yield report
        if report.rung is None:
            return


@contextmanager
def _watch(timeout: float | None, trials: int) -> Iterator[None]:
    """Kill this process if the block, in which so many trials end, does not return long after their deadline."""
    if timeout:
        faulthandler.dump_traceback_later(2 * timeout * trials + GRACE_SECONDS, exit=True)
    try:
        yield
    finally:
        if timeout:  # after a fork, this waits for ever for a thread that a parent had started
            faulthandler.cancel_dump_traceback_later()


def run_pack(
    data: TrialData | str, trials: Sequence[ConfigTrial], timeout: float | None = None, halving: int = 0
) -> Iterator[list[TrialResult]]:
    """Yield results of one pack, as they come. A pack that fails as a whole is tried again one by one."""
    left = {trial.id: trial for trial in trials}
    if isinstance(data, TrialData) and len(left) > 1:
        for results in _together(data, trials, timeout, halving):
            for result in results:
                del left[result.id]
            yield results
    for trial in left.values():
        yield [run_trial(data, trial, timeout)]


def _together(
    data: TrialData, trials: Sequence[ConfigTrial], timeout: float | None, halving: int
) -> Iterator[list[TrialResult]]:
    """Yield results of the pack until an error. Which trial is at fault shows when each trains alone."""
    from sp500.tuning.packing.batch_trainer import BatchTrainer

    remaining = timeout and timeout * len(trials)
    try:
        with deadline(remaining):
            upcoming = BatchTrainer(data, trials, timeout, halving).run()
        while True:
            started = time.perf_counter()
            # Not around the yield: time that the caller takes is not the pack's.
            with deadline(remaining):
                results = next(upcoming, None)
            if results is None:
                return
            remaining = remaining and max(remaining - (time.perf_counter() - started), 0.01)
            yield results
    except Exception:  # noqa: BLE001 - each trial trains again on its own, which records the error
        return


def _shape(config: RunConfig) -> str:
    """Return the settings that members must share, as text."""
    return json.dumps(config.model_dump(mode="json", exclude={"io": True, "eval": True, **FREE}), sort_keys=True)


def _work(pack: Sequence[ConfigTrial]) -> float:
    """Return the relative time of a pack."""
    model = pack[0].config.model
    slower = 1 if model.packs else 30
    return sum(trial.config.train.epochs for trial in pack) * slower * model.relative_cost


def count_processes(config: RunConfig) -> int:
    """Return how many packs run at once on this machine."""
    alone = config.train.threads != 1 or device(config.train.device).type != "cpu"
    return 1 if alone else usable_cores()


def _start(
    data: TrialData | str, pack: list[ConfigTrial], limits: Limits, states: Path
) -> tuple[Connection, BaseProcess]:
    """Start a process that trains the pack, and return the connection from which its results come until it ends."""
    _import_networks(pack)
    ours, theirs = multiprocessing.Pipe()
    work = (data, pack, limits, states)
    if system.start_method() == "fork":
        process: BaseProcess = multiprocessing.get_context("fork").Process(
            target=_train, args=(theirs, *work), name="pack"
        )
    else:  # as to Ray's workers: what a file of the user's defines goes along
        copy = cloudpickle.dumps(work)
        process = multiprocessing.get_context("spawn").Process(target=_train_copy, args=(theirs, copy), name="pack")
    process.start()
    theirs.close()  # otherwise the end of the process would not show here
    return ours, process


def _receive(connection: Connection, collector: Collector[ConfigTrial]) -> None:
    """Take results of a pack, or answer a trial at a rung. Raises EOFError or OSError if the process has ended."""
    results = connection.recv()
    if not isinstance(results, Report):
        for result in results:
            collector.add(result)
    else:
        answer = collector.goes_on(results)
        if results.rung is not None:
            connection.send(answer)


def _import_networks(pack: Sequence[ConfigTrial]) -> None:
    """Import here what the pack's process would: each fork would do it again."""
    from sp500.tuning.packing import batch_trainer  # noqa: F401

    for trial in pack:
        if place := trial.config.model.network or trial.config.model.estimator:
            resolve_name(place)


def _train(
    connection: Connection, data: TrialData | str, pack: list[ConfigTrial], limits: Limits, states: Path
) -> None:
    # The parent handles Ctrl-C, and a SIGTERM only to the child ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if limits.memory:
        limit_memory(limits.memory)
    if not limits.stop:
        for results in run_pack_with_watchdog(data, pack, limits):
            connection.send(results)
        return
    for report in run_to_rungs_with_watchdog(data, pack[0], limits, states):
        connection.send(report)
        if report.rung is None or not connection.recv():
            return


def _train_copy(connection: Connection, work: bytes) -> None:
    _train(connection, *cloudpickle.loads(work))


def _end_with_parent() -> None:
    """End this process when its parent is killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
