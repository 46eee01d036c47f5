"""One config of a pack: where its training stands, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sp500.config import RunConfig
from sp500.runs.record import EpochMetrics
from sp500.runs.trials import TrialResult
from sp500.training.state import TrainingState
from sp500.tuning.sequential import build_failure, build_result
from sp500.tuning.space import Trial
from sp500.tuning.trial_data import TrialData


@dataclass
class Member:
    """One config of a pack of `pack` configs."""

    trial: Trial
    pack: int
    progress: TrainingState = field(default_factory=TrainingState)
    seconds: float = 0.0
    """Its share of the pack's."""
    cpu_seconds: float = 0.0
    """Likewise."""
    output: np.ndarray | None = None
    """Of its best epoch, on the validation windows [window, output]."""

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self.trial.config

    @property
    def optimised(self) -> tuple[float, float]:
        """What members must have in common to share a call of the optimiser."""
        return self.config.lr, self.config.train.weight_decay

    @property
    def stream(self) -> tuple[int, float]:
        """What decides its dropout masks."""
        return self.config.train.seed, self.config.model.dropout_rate

    @property
    def trained_loss(self) -> float:
        """Best validation loss over the epochs, without that of the untrained model."""
        return min(epoch.valid_loss for epoch in self.progress.epochs if epoch.valid_loss is not None)

    def start(self, valid_loss: float, output: np.ndarray) -> None:
        """Record the untrained model's loss and outputs on the validation windows."""
        self.progress.start(valid_loss)
        self.output = output.copy()  # a view would keep the outputs of the whole pack

    def record(self, epoch: EpochMetrics, step: int, output: np.ndarray) -> None:
        """Record an epoch and its outputs on the validation windows."""
        self.seconds += epoch.seconds
        if self.progress.record(epoch, step):
            self.output = output.copy()

    def failure(self, reason: str) -> TrialResult:
        """Its result when it did not end well."""
        return build_failure(self.trial, reason, self.seconds).model_copy(update={"pack": self.pack})

    def result(self, data: TrialData) -> TrialResult:
        """Its result."""
        progress = self.progress
        assert self.output is not None
        return build_result(
            data,
            self.trial,
            self.output,
            valid_loss=progress.best_loss if math.isfinite(progress.best_loss) else None,
            best_epoch=progress.best_epoch,
            epochs=len(progress.epochs),
            samples=sum(epoch.samples for epoch in progress.epochs),
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            pack=self.pack,
        )
