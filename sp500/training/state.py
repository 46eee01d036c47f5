"""The state of training: what a checkpoint keeps in addition to the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sp500.config import RunConfig
from sp500.runs.record import EpochMetrics


@dataclass
class PartialEpoch:
    """Progress of an unfinished epoch, over all workers."""

    steps: int = 0
    loss_sum: float = 0.0
    """In the task's units, over the targets."""
    samples: int = 0
    """Windows."""
    targets: int = 0
    seconds: float = 0.0
    first_batch_seconds: float = 0.0


@dataclass
class TrainingState:
    """The state of training. All of it goes into a checkpoint."""

    epoch: int = 0
    """Epochs that have ended."""
    step: int = 0
    best_epoch: int = 0
    """0: the untrained model."""
    best_loss: float = math.inf
    """Validation loss of the best epoch."""
    best_score: float = math.inf
    """Of the best epoch: the validation loss, or what `train.monitor` names; lower is better."""
    epochs: list[EpochMetrics] = field(default_factory=list)
    untrained_loss: float | None = None
    """Validation loss of the untrained model."""
    partial: PartialEpoch | None = None
    """The epoch after `epoch`, if it is under way."""

    def start(self, valid_loss: float, score: float | None = None) -> None:
        """Record the validation loss of the untrained model, and its score if that is another number.

        An epoch has to improve on it to be the best.
        """
        self.best_epoch, self.best_loss, self.untrained_loss = 0, valid_loss, valid_loss
        self.best_score = valid_loss if score is None else score

    def record(self, epoch: EpochMetrics, step: int, score: float | None = None) -> bool:
        """Record an epoch, with its score if that is not the validation loss. Returns whether it is the best so far.

        Without a validation split the latest one is.
        """
        self.epoch, self.step, self.partial = epoch.epoch, step, None
        self.epochs.append(epoch)
        score = epoch.valid_loss if score is None else score
        better = score is None or score < self.best_score
        if better:
            self.best_epoch = epoch.epoch
            self.best_score = math.inf if score is None else score
            self.best_loss = math.inf if epoch.valid_loss is None else epoch.valid_loss
        return better

    def is_done(self, config: RunConfig) -> bool:
        """Return whether the last epoch, the last step or the end of patience is reached."""
        train = config.train
        waited = self.epoch - self.best_epoch
        return (
            self.epoch >= train.epochs
            or (0 < train.max_steps <= self.step and not self.partial)
            or (0 < train.early_stop_patience <= waited)
        )

    def dump(self) -> dict[str, object]:
        """Return plain data; an infinite loss becomes None."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss if math.isfinite(self.best_loss) else None,
            **({} if self.best_score == self.best_loss else {"best_score": self.best_score}),
            "epochs": [epoch.model_dump(mode="json") for epoch in self.epochs],
            "untrained_loss": self.untrained_loss,
            "partial": asdict(self.partial) if self.partial else None,
        }

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> TrainingState:
        """Parse what `dump` returns."""
        epochs = [EpochMetrics.model_validate(line) for line in data["epochs"]]
        loss = math.inf if data["best_loss"] is None else data["best_loss"]
        partial = PartialEpoch(**fields) if (fields := data.get("partial")) else None
        score, untrained = data.get("best_score", loss), data.get("untrained_loss")
        return cls(data["epoch"], data["step"], data["best_epoch"], loss, score, epochs, untrained, partial)
