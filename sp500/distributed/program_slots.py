"""Programs of a search on Ray: an actor each, with its CPUs and GPUs, that starts them on its node."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from sp500.config.program import ProgramConfig
from sp500.distributed import capacity, preflight, session
from sp500.distributed.capacity import Shares
from sp500.errors import ResourcesError
from sp500.formatting import some
from sp500.programs.output import Measurement
from sp500.programs.program import End, Program, Request
from sp500.runs.store import Run
from sp500.tuning.programs import Slots


@contextmanager
def connect(config: ProgramConfig, run: Run, *, cpus: int, gpus: int | None) -> Iterator[RaySlots]:
    """Connect to Ray and yield as many slots as it holds, each with these CPUs and GPUs (None: 1 if there are some).

    Raises ResourcesError for a cluster without a node that holds one.
    """
    with session.connect():
        preflight.check_shared_storage(run.path)
        run.write_cluster(capacity.resources())
        if gpus is None:
            gpus = int(preflight.use_gpu(config.device, 1))
        count = count_slots(capacity.list_nodes(), cpus, gpus)
        preflight.worker_share(1, gpu=bool(gpus))  # waits for a first node
        yield RaySlots(count, cpus, gpus)


def count_slots(nodes: Sequence[Shares], cpus: int, gpus: int) -> int:
    """Return how many programs the nodes hold, each on one node. Raises ResourcesError if none."""
    count = sum(int(min(node["CPU"] // cpus, node["GPU"] // gpus if gpus else math.inf)) for node in nodes)
    if not count:
        most = {name: max((node[name] for node in nodes), default=0.0) for name in ("CPU", "GPU")}
        if not gpus:
            raise ResourcesError(f"trial_cpus {cpus}: the largest node has {some(most['CPU'], 'CPU')}; lower it")
        raise ResourcesError(
            f"trial_cpus {cpus}, trial_gpus {gpus}: no node has both; the most of one are "
            f"{some(most['CPU'], 'CPU')} and {some(most['GPU'], 'GPU')}; lower them"
        )
    return count


class SlotActor:
    """One actor, on whose node programs run one after another."""

    def start(self, request: Request) -> list[Measurement | End]:
        """Start a program, in the same folder as the driver if this node has that. Nothing has come from it yet."""
        capacity.withdraw()
        if not Path(request.cwd).is_dir():
            request = replace(request, cwd=os.getcwd())  # noqa: PTH109 - where Ray unpacked the job's files
        self._program = Program(request)
        return []

    def read(self) -> list[Measurement | End]:
        """Return what has come from the program; waits for something."""
        return self._program.read()

    def stop(self) -> None:
        """Ask the program to end."""
        self._program.stop()


class RaySlots(Slots):
    """Actors of a cluster, started when they are needed."""

    def __init__(self, count: int, cpus: int, gpus: int) -> None:
        self.count, self.cluster = count, capacity.resources()
        self.cores = int(self.cluster.get("CPU", 0))
        # Two calls at once: `stop` while `read` waits.
        self._actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=2)(SlotActor)
        self._free: list[Any] = []
        self._places: dict[str, Any] = {}
        self._coming: dict[Any, str] = {}

    def start(self, trial: str, request: Request) -> None:
        """Start the program of a trial."""
        place = self._places[trial] = self._free.pop() if self._free else self._actor.remote()
        self._coming[place.start.remote(request)] = trial

    def wait(self) -> list[tuple[str, Measurement | End]]:
        """Return what has come from programs. One whose actor died has ended."""
        ready, _ = session.run_in_thread(lambda: ray.wait(list(self._coming)))
        capacity.withdraw_held()
        come: list[tuple[str, Measurement | End]] = []
        for future in ready:
            trial = self._coming.pop(future)
            try:
                events = ray.get(future)
            except RayError as error:
                detail = f"its process ended: {' '.join(str(error).split())[:300]}"
                come.append((trial, End("lost", detail=detail)))
                del self._places[trial]
                continue
            come += [(trial, event) for event in events]
            if events and isinstance(events[-1], End):
                self._free.append(self._places.pop(trial))
            else:
                self._coming[self._places[trial].read.remote()] = trial
        return come

    def stop(self, trial: str) -> None:
        """Ask the program of a trial to end."""
        if place := self._places.get(trial):
            place.stop.remote()

    def close(self) -> None:
        """End all actors; their programs end with them."""
        for place in [*self._free, *self._places.values()]:
            ray.kill(place)
        self._free, self._places = [], {}
