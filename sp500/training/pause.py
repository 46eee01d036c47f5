"""The state of a training that pauses after an epoch, and goes on from there in this process or in another one.

One file per training, written atomically and replaced at each pause: a line of JSON, then the tensors. Between pauses
nothing is written: a search of many short trainings would spend its time on checkpoints of every epoch.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from sp500.machine.disk import write_atomic
from sp500.runs.versions import digest
from sp500.training.checkpoint import Snapshot, pack
from sp500.training.sharded import Tensors
from sp500.training.state import TrainingState
from sp500.training.worker import Worker

log = logging.getLogger(__name__)

DAMAGE = (OSError, ValueError, KeyError, TypeError, SafetensorError)


class PausedTraining:
    """The file of one training in one process. `fingerprint` keeps the state of other settings or data out."""

    def __init__(self, path: Path, fingerprint: str, until: int | None = None) -> None:
        self.path, self.fingerprint, self._until = path, fingerprint, until

    def position(self) -> tuple[int, float]:
        """Return the epoch after which it paused, and the seconds of its epochs; 0 if it did not, or is damaged."""
        state = self._read()
        progress = TrainingState.parse(state[0].progress) if state else TrainingState()
        return progress.epoch, sum(epoch.seconds for epoch in progress.epochs)

    def save(self, snapshot: Snapshot, worker: Worker) -> None:
        """Write the state if this is the epoch to pause after."""
        if snapshot.progress["epoch"] != self._until or snapshot.progress["partial"]:
            return
        parts = {"model": snapshot.model, "optimizer": snapshot.optimizer, "best": snapshot.best}
        data = pack({f"{part}/{name}": value.detach().cpu() for part in parts for name, value in parts[part].items()})
        head = json.dumps({"fingerprint": self.fingerprint, "progress": dict(snapshot.progress)})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, f"{digest(head.encode() + data)}\n{head}\n".encode() + data)

    def resume(self, worker: Worker, like: Snapshot | None = None) -> tuple[Snapshot, Tensors] | None:
        """Return the state and the best weights; None if there is none."""
        return self._read()

    def _read(self) -> tuple[Snapshot, Tensors] | None:
        if not self.path.exists():
            return None
        try:
            checksum, head, data = self.path.read_bytes().split(b"\n", 2)
            if digest(head + data) != checksum.decode():
                raise ValueError("it does not match its checksum")
            plain, parts = json.loads(head), dict[str, dict[str, Tensor]](model={}, optimizer={}, best={})
            for name, value in load(data).items():
                part, _, rest = name.partition("/")
                parts[part][rest] = value
        except DAMAGE as error:
            log.warning("%s is not used, and its training starts over: %s", self.path, error)
            return None
        if plain["fingerprint"] != self.fingerprint:
            return None
        return Snapshot(parts["model"], parts["optimizer"], plain["progress"]), parts["best"]
