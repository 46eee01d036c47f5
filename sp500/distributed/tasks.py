"""Independent pieces of work on Ray, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from sp500.config import RunConfig
from sp500.distributed import capacity, preflight, session
from sp500.runs.store import Run

S = TypeVar("S")
R = TypeVar("R")


def run_tasks(
    function: Callable[[RunConfig, S, int], R],
    config: RunConfig,
    shared: S,
    numbers: Sequence[int],
    *,
    run: Run,
    on_result: Callable[[int, R | RayError], None],
) -> dict[str, float]:
    """Run `function(config, shared, number)` for each number, `config.num_workers` at once. Returns the cluster's size.

    `shared` is sent once. `on_result` gets each result as it ends, or the error of a task whose process is lost
    (killed, out of memory, a lost node). Raises ResourcesError when the cluster lacks the resources of one task.
    """
    with session.connect():
        run.write_cluster(capacity.resources())
        gpu = preflight.use_gpu(config.train.device, 1)
        preflight.worker_share(1, gpu=gpu)
        # Ray would try a task that ran out of memory again without end.
        task = ray.remote(num_cpus=1, num_gpus=1 if gpu else 0, max_retries=0)(function)
        # A task has one CPU, and so one thread.
        train = config.train.model_copy(update={"threads": 1})
        alone = config.model_copy(update={"train": train})
        handle, left = ray.put(shared), list(numbers)
        running: dict[Any, int] = {}
        while left or running:
            while left and len(running) < config.num_workers:
                number = left.pop(0)
                running[task.remote(alone, handle, number)] = number
            ready, _ = session.run_in_thread(lambda: ray.wait(list(running)))
            capacity.withdraw_held()
            for done in ready:
                try:
                    result = ray.get(done)
                except RayError as error:
                    result = error
                on_result(running.pop(done), result)
        return capacity.resources()
