"""Packs of trials in processes of this machine, without Ray.

A pack's process is a fork of this one: it starts in milliseconds with the libraries and the data that this process has
loaded. A process takes one thread, so there are as many as cores. On a GPU, or where a trial asks for several threads,
packs run one after another in this process, since CUDA and OpenMP do not survive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, parent_process

from sp500.config import RunConfig
from sp500.machine.cores import usable_cores
from sp500.machine.memory import limit_memory
from sp500.runs.trials import TrialResult
from sp500.training.worker import device
from sp500.tuning import trial_data
from sp500.tuning.limits import Limits
from sp500.tuning.packing import packs
from sp500.tuning.packing.packs import PackQueue
from sp500.tuning.sequential import build_failure
from sp500.tuning.space import Trial
from sp500.tuning.suggest import Suggester
from sp500.tuning.trial_data import TrialData

Data = Mapping[str, TrialData | str]


def process_count(config: RunConfig) -> int:
    """How many packs run at once on this machine."""
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    alone = not can_fork or config.train.threads != 1 or device(config.train.device).type != "cpu"
    return 1 if alone else usable_cores()


def run(
    datasets: Data,
    suggester: Suggester,
    limits: Limits,
    *,
    at_once: int,
    processes: int,
    on_result: Callable[[TrialResult, int], None],
) -> None:
    """Try what the suggester says, asked for `at_once` trials at a time.

    `on_result` gets each result as it arrives, and how many configs are on their way.
    """
    queue = PackQueue(suggester, limits.pack, at_once, limits.spread(processes))

    def keep(result: TrialResult) -> None:
        queue.waiting.discard(result.id)
        on_result(result, len(queue.waiting))

    if processes > 1:
        _run_in_processes(datasets, queue, limits, processes, keep)
        return
    if limits.memory:
        limit_memory(limits.memory)
    while pack := queue.take():
        for results in packs.run(_data(datasets, pack), pack, limits.timeout, limits.halving):
            for result in results:
                keep(result)


def _run_in_processes(
    datasets: Data, queue: PackQueue, limits: Limits, processes: int, keep: Callable[[TrialResult], None]
) -> None:
    running: dict[Connection, tuple[BaseProcess, list[Trial]]] = {}
    try:
        while True:
            while len(running) < processes and (pack := queue.take()):
                connection, process = _start(_data(datasets, pack), pack, limits)
                running[connection] = process, pack
            if not running:
                return
            for connection in [ready for ready in wait(list(running)) if isinstance(ready, Connection)]:
                try:
                    results = connection.recv()
                except (EOFError, OSError):  # the process has ended, perhaps in the middle of a result
                    process, pack = running.pop(connection)
                    process.join()
                    for lost in queue.retry(pack):
                        keep(build_failure(lost, f"its process ended with exit code {process.exitcode}"))
                    continue
                for result in results:
                    keep(result)
    finally:
        for process, _ in running.values():
            process.kill()  # what it had finished is in the ledger
            process.join()


def _start(data: TrialData | str, pack: list[Trial], limits: Limits) -> tuple[Connection, BaseProcess]:
    """A process that trains the pack, and the connection that its results come from until it ends."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(sender, data, pack, limits), name="pack")
    process.start()
    sender.close()  # otherwise the end of the process would not show here
    return receiver, process


def _train(sender: Connection, data: TrialData | str, pack: list[Trial], limits: Limits) -> None:
    # The parent handles Ctrl-C, and a SIGTERM to the child alone ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if limits.memory:
        limit_memory(limits.memory)
    for results in packs.run_with_watchdog(data, pack, limits):
        sender.send(results)


def _end_with_parent() -> None:
    """Leave no orphan when the parent is killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _data(datasets: Data, pack: list[Trial]) -> TrialData | str:
    return datasets[trial_data.key(pack[0].config)]
