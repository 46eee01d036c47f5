"""The one training loop.

It talks to a Worker, so the same lines run alone and as one of N. The gradient of a step is that of the mean loss over
the global batch, whatever N: each rank weighs its part by what the part holds. Random numbers are drawn anew for every
epoch from the seeds, so a resumed run needs no saved generator to end in the same bits.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sp500.config import RunConfig
from sp500.data.batches import TrainingBatches
from sp500.data.windows import Dataset
from sp500.errors import CheckpointError, SP500Error
from sp500.machine.memory import PeakMemory
from sp500.models import dropout
from sp500.runs.record import EpochMetrics
from sp500.seeding import derive
from sp500.training import evaluation
from sp500.training.checkpoint import Checkpoints, Snapshot, Tensors
from sp500.training.optimizer import AdamW
from sp500.training.state import TrainingState
from sp500.training.task import Task
from sp500.training.worker import Worker

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class FitResult:
    """A fitted model's numbers. `outputs` [window, number] per split: what the task keeps of the best epoch's outputs;
    losses: mean over the validation windows.

    Best epoch 0 is the untrained model, whose forecast is the naive one: no epoch had a lower validation loss.
    """

    epochs: list[EpochMetrics]
    best_epoch: int
    best_loss: float | None
    untrained_loss: float | None
    outputs: dict[str, np.ndarray]
    peak_worker_bytes: int
    device: str
    fit_seconds: float
    """Seconds in the epochs that this call ran; a resumed run's earlier epochs are not among them."""

    @property
    def samples(self) -> int:
        """Windows trained on."""
        return sum(epoch.samples for epoch in self.epochs)

    @property
    def train_seconds(self) -> float:
        """Seconds in training steps, evaluation apart."""
        return sum(epoch.train_seconds for epoch in self.epochs)

    @property
    def first_batch_seconds(self) -> float:
        """Of these, what passed before the very first batch: a start that is paid once."""
        return self.epochs[0].first_batch_seconds


def fit(
    task: Task,
    dataset: Dataset,
    config: RunConfig,
    worker: Worker,
    checkpoints: Checkpoints | None = None,
    *,
    train: TrainingBatches | None = None,
    splits: tuple[str, ...] = ("valid", "test"),
) -> FitResult:
    """Train until the epochs or the patience end, from the last checkpoint where there is one.

    `train` gives this rank's batches, from the dataset's own windows if not given; `splits` those whose outputs are
    wanted. Raises SP500Error when the loss is no longer finite.
    """
    torch.set_num_threads(config.train.threads or os.cpu_count() or 1)
    with PeakMemory() as peak:
        fitting = _Fitting(task, dataset, config, worker, checkpoints, train=train)
        fitting.run()
        outputs = fitting.outputs(splits)
    peaks = torch.zeros(worker.world, dtype=torch.float64, device=worker.device)
    peaks[worker.rank] = peak.bytes
    progress = fitting.progress
    return FitResult(
        epochs=progress.epochs,
        best_epoch=progress.best_epoch,
        best_loss=progress.best_loss if math.isfinite(progress.best_loss) else None,
        untrained_loss=progress.untrained_loss,
        outputs=outputs,
        peak_worker_bytes=int(worker.total(peaks).max()),
        device=worker.device.type,
        fit_seconds=sum(epoch.seconds for epoch in progress.epochs[fitting.resumed :]),
    )


class _Fitting:
    """One call of `fit`: model, optimiser and batches, for the length of the call."""

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        config: RunConfig,
        worker: Worker,
        checkpoints: Checkpoints | None,
        *,
        train: TrainingBatches | None,
    ) -> None:
        self.task, self.dataset, self.config, self.worker, self.checkpoints = (
            task,
            dataset,
            config,
            worker,
            checkpoints,
        )
        self.model = self._model()
        self.wrapped = worker.wrap(self.model)
        dtype = DTYPES[config.train.dtype]
        self.dropout = dropout.Source(self.model, config.train.seed, dtype=dtype, device=worker.device)
        self.optimizer = AdamW(
            self.model.parameters(), lr=config.lr, weight_decay=config.train.weight_decay, fused=True
        )
        self.train = train or evaluation.batches_of(dataset.train, worker)
        self.valid = evaluation.batches_of(dataset.valid, worker) if dataset.valid is not None else None
        self.progress = TrainingState()
        self.best: Tensors = {}
        self.resumed = 0

    def _model(self) -> nn.Module:
        torch.manual_seed(derive(self.config.train.seed, "weights"))
        model = self.task.model(self.config, self.dataset)
        return model.to(self.worker.device, DTYPES[self.config.train.dtype])

    def run(self) -> None:
        """Train to the end."""
        if self.checkpoints and (found := self.checkpoints.resume()):
            snapshot, self.best = found
            self.model.load_state_dict(snapshot.model)
            self.optimizer.load(snapshot.optimizer)
            self.progress = TrainingState.parse(snapshot.progress)
            self.resumed = self.progress.epoch
        else:
            self._start()
        mine = torch.tensor(float(self.resumed), device=self.worker.device)
        if float(self.worker.total(mine)) != self.resumed * self.worker.world:
            raise CheckpointError("workers see different checkpoints: the folder of runs is not on storage they share")
        while not self.progress.done(self.config):
            self._epoch(self.progress.epoch + 1)

    def _start(self) -> None:
        """Make the untrained model the first candidate for the best epoch, where a validation split can judge it."""
        loss = self._validate()
        if loss is None or self.config.model.own:  # a model of the user's starts anywhere, not from a forecast
            self.progress.untrained_loss = loss
            return
        if not math.isfinite(loss):
            raise diverged(self.config, 0, "validation loss")
        self.progress.start(loss)
        self._keep_best()
        if self.checkpoints:
            self._save(self.checkpoints)

    def _keep_best(self) -> None:
        self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _epoch(self, number: int) -> None:
        started = time.perf_counter()
        self.dropout.start(number)
        loss, samples, step, waited = self._train(number)
        trained = time.perf_counter()
        metrics = EpochMetrics(
            epoch=number,
            train_loss=loss,
            valid_loss=self._validate(),
            samples=samples,
            train_seconds=trained - started,
            first_batch_seconds=waited,
            seconds=time.perf_counter() - started,
        )
        if not math.isfinite(loss) or (metrics.valid_loss is not None and not math.isfinite(metrics.valid_loss)):
            raise diverged(self.config, number, "loss")
        if self.progress.record(metrics, step):
            self._keep_best()
        if self.checkpoints:
            self._save(self.checkpoints)
        self.worker.report(metrics)

    def _save(self, checkpoints: Checkpoints) -> None:
        """Rank 0 writes; when it cannot, all ranks stop, since they would wait for it for ever."""
        failed: CheckpointError | None = None
        if self.worker.rank == 0:
            model = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
            try:
                checkpoints.save(Snapshot(model, self.optimizer.dump(), dict(self.progress.dump())))
            except CheckpointError as error:
                failed = error
        flag = torch.tensor(float(failed is not None), device=self.worker.device)
        if float(self.worker.total(flag)):
            raise failed or CheckpointError("rank 0 cannot write its checkpoint")

    def _train(self, number: int) -> tuple[float, int, int, float]:
        """One pass: mean loss over all ranks, windows, the step reached, and seconds until the first batch came."""
        train, data = self.config.train, self.config.data
        self.wrapped.train()
        parameters = list(self.model.parameters())
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.worker.device)
        samples, targets, step = 0, 0, self.progress.step
        started, waited = time.perf_counter(), 0.0
        batches = self.train.epoch(number, self.config.batch_size, shuffle=data.shuffle_train, seed=data.seed)
        for batch in batches:
            waited = waited or time.perf_counter() - started
            if step == train.max_steps > 0:
                break
            self.dropout.windows = batch.windows
            loss = self.task.loss(self.wrapped(batch.x), batch.y)
            if not batch.count:
                loss = loss * 0.0
            self.optimizer.zero_grad(set_to_none=True)
            # Ranks' gradients are averaged; times world over total makes that the mean over the global batch.
            (loss * (self.worker.world / batch.targets)).backward()
            if train.clip:
                # A gradient whose norm overflows is clipped to nothing: 0 x infinity makes the loss tell of it.
                loss_sum += 0.0 * nn.utils.clip_grad_norm_(parameters, train.clip)
            self.optimizer.step()
            loss_sum += loss.detach()
            samples, targets, step = samples + batch.total, targets + batch.targets, step + 1
        return float(self.worker.total(loss_sum)) / max(targets, 1), samples, step, waited

    @torch.no_grad()
    def _validate(self) -> float | None:
        if self.valid is None:
            return None
        self.model.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.worker.device)
        for batch in self.valid.in_order(evaluation.windows_at_once(self.valid, self.config.batch_size)):
            if batch.count:
                loss_sum += self.task.loss(self.model(batch.x), batch.y)
        return float(self.worker.total(loss_sum)) / self.valid.targets

    def outputs(self, splits: tuple[str, ...]) -> dict[str, np.ndarray]:
        """What the task keeps of the best weights' outputs for every window of these splits, on every rank alike."""
        self.model.load_state_dict(self.best)
        found = {}
        for name, windows in (("valid", self.dataset.valid), ("test", self.dataset.test)):
            if name in splits and windows is not None:
                found[name] = evaluation.kept(self.task, self.model, windows, self.worker, self.config.batch_size)
                if not np.isfinite(found[name]).all():
                    raise diverged(self.config, self.progress.best_epoch, f"{name} output")
        return found


def diverged(config: RunConfig, epoch: int, what: str) -> SP500Error:
    """The error of a run whose numbers are no longer finite."""
    way_out = f"lower train.lr ({config.lr:g}) or set train.clip"
    return SP500Error(f"training diverged: the {what} of epoch {epoch} is not finite; {way_out}")
