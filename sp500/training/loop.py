"""The one training loop.

It talks to a Worker, so the same lines run alone and as one of N; `Stepper` has what a step computes. Order and random
numbers (those of sp500.models.dropout) come from the seeds, the epoch and the window, so a run that is resumed, also
inside an epoch, needs no saved generator to end in the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import torch
from torch import nn

from sp500.config import RunConfig
from sp500.data.batches import TrainingBatches
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, DataError, SP500Error
from sp500.machine.cores import usable_cores
from sp500.machine.memory import PeakMemory
from sp500.models import weights
from sp500.runs.record import EpochMetrics
from sp500.seeding import derive
from sp500.training import evaluation
from sp500.training.checkpoint import Keeper, Snapshot
from sp500.training.sharded import Tensors
from sp500.training.state import PartialEpoch, TrainingState
from sp500.training.step import DTYPES, Stepper
from sp500.training.task import Task
from sp500.training.transforms import Transforms
from sp500.training.worker import Worker, share_statistics

CHECKED_STEPS = 100
"""Steps between two looks at the losses: each waits for the GPU, and for the other workers."""
LOSS = "valid_loss"
"""What `train.monitor` names if not one of the task's measures."""
RISEN = 10
"""Ratio of two losses that makes a rise."""


@dataclass(frozen=True)
class FitResult:
    """A fitted model's numbers. `outputs` [window, number] per split: what the task keeps of the best epoch's outputs;
    losses: mean over the validation windows. `best_score`: what `train.monitor` names, lower is better; `measures`: by
    split, what the task measures there with the best weights.

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
    matmul_flops_per_second: float | None = None
    """Operations per second of a matrix product on all workers' devices together, if measured."""
    paused: bool = False
    """Whether it ended at the epoch to pause after, and can go on."""
    device_name: str = ""
    """Of a GPU, if that was measured: NVIDIA H100 80GB HBM3."""
    best_score: float | None = None
    measures: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Windows trained on."""
        return sum(epoch.samples for epoch in self.epochs)

    @property
    def train_seconds(self) -> float:
        """Seconds in training steps, evaluation apart."""
        return sum(epoch.train_seconds for epoch in self.epochs)

    @property
    def warm_seconds(self) -> float:
        """Seconds in training steps without the wait for the very first batch."""
        return self.train_seconds - self.first_batch_seconds

    @property
    def first_batch_seconds(self) -> float:
        """Of these, what passed before the very first batch: a start that is paid once."""
        return self.epochs[0].first_batch_seconds


def fit(
    task: Task,
    dataset: Dataset,
    config: RunConfig,
    worker: Worker,
    checkpoints: Keeper | None = None,
    *,
    train: TrainingBatches | None = None,
    splits: tuple[str, ...] = ("valid", "test"),
    until: int | None = None,
) -> FitResult:
    """Train until the epochs or the patience end, from the last checkpoint if there is one.

    `train`: this rank's batches (default: of the dataset's own windows). `splits`: those whose outputs are wanted.
    `until`: the epoch after which it pauses.
    Raises SP500Error when the loss is no longer finite, DataError for a validation part of masked targets,
    CheckpointError for a folder that cannot be written, or that workers see differently.
    """
    torch.set_num_threads(config.train.threads or usable_cores())
    with PeakMemory() as peak:
        fitting = _Fitting(task, dataset, config, worker, checkpoints, train=train)
        paused = fitting.run(until)
        outputs, measures = fitting.outputs(splits)
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
        paused=paused,
        fit_seconds=sum(epoch.seconds for epoch in progress.epochs[fitting.resumed :]) - fitting.earlier,
        best_score=progress.best_score if config.train.monitor != LOSS else None,
        measures=measures,
    )


class _Fitting:
    """One call of `fit`: model, optimiser and batches, for the length of the call."""

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        config: RunConfig,
        worker: Worker,
        checkpoints: Keeper | None,
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
        self.train = train or evaluation.training_batches(dataset.train, worker)
        self.transforms = Transforms(task, self.train, config.train.seed)
        steps = config.train.epochs * self.train.steps(config.batch_size)
        self.model = self._model()
        self.stepper = Stepper(task, self.model, config, worker, min(steps, config.train.max_steps or steps))
        self.valid = evaluation.batches_of(dataset.valid, worker) if dataset.valid is not None else None
        if self.valid is not None and not self.valid.targets:
            raise DataError("no target of the validation part counts: all are masked (-100)")
        self.progress = TrainingState()
        self.best: Tensors = {}
        self.resumed, self.earlier = 0, 0.0
        self.losses: list[float] = []  # of some of the last steps, over all workers

    def _model(self) -> nn.Module:
        torch.manual_seed(derive(self.config.train.seed, "weights"))
        model = self.task.model(self.config, self.dataset)
        return model.to(DTYPES[self.config.train.dtype])  # the worker moves it: FSDP a layer at a time

    def run(self, until: int | None = None) -> bool:
        """Train to the end, or until an epoch. Returns whether it pauses there."""
        if not self._resume():
            self._start()
        while not self.progress.is_done(self.config):
            if until is not None and self.progress.epoch >= until:
                return True
            self._epoch(self.progress.epoch + 1)
        return False

    def _resume(self) -> bool:
        """Continue from the last checkpoint. Returns whether there is one."""
        held = Snapshot(weights.dump(self.model), {**self.stepper.optimizers.parameters(), **self.stepper.own()}, {})
        resumed = self.checkpoints.resume(self.worker, held) if self.checkpoints else None
        if resumed is None:
            return False
        snapshot, self.best = resumed
        weights.load(self.model, snapshot.model)
        if self.stepper.average:
            self.stepper.average.load(snapshot.optimizer)
        self.stepper.optimizers.load(snapshot.optimizer, str(snapshot.progress.get("optimizer", "")))
        self.progress = TrainingState.parse(snapshot.progress)
        self.resumed = self.progress.epoch
        self.earlier = self.progress.partial.seconds if self.progress.partial else 0.0
        return True

    def _start(self) -> None:
        """Make the untrained model the first candidate for the best epoch, if a validation split can judge it."""
        loss, measures = self._validate()
        score = self._score(measures)  # a monitor that is not measured is refused before any step
        if loss is None or self.config.model.own:  # a model of the user's starts anywhere, not from a forecast
            self.progress.untrained_loss = loss
            return
        if not math.isfinite(loss):
            raise divergence_error(self.config, 0, "validation loss")
        self.progress.start(loss, score)
        self._keep_best()
        if self.checkpoints:
            self._save(self.checkpoints)

    def _keep_best(self) -> None:
        self.best = {name: value.detach().clone() for name, value in weights.dump(self.model).items()}

    def _epoch(self, number: int) -> None:
        self.stepper.start(number)
        done = self._train(number)
        share_statistics(self.model, self.worker)
        if self.stepper.trainer:
            self.stepper.trainer.compare_weights()
        with self.stepper.judged():
            self._judge(number, done)

    def _judge(self, number: int, done: PartialEpoch) -> None:
        """Validate, record and keep an epoch that has been trained."""
        trained, (valid, measures) = time.perf_counter(), self._validate()
        metrics = EpochMetrics(
            epoch=number,
            train_loss=done.loss_sum / max(done.targets, 1),
            valid_loss=valid,
            best_loss=valid if valid is None else min(valid, self.progress.best_loss),
            samples=done.samples,
            train_seconds=done.seconds,
            first_batch_seconds=done.first_batch_seconds,
            seconds=done.seconds + time.perf_counter() - trained,
            finished=datetime.now(UTC),
            measures=measures,
        )
        if valid is not None and not math.isfinite(valid):
            raise divergence_error(self.config, number, "validation loss", self.losses)
        if self.progress.record(metrics, self.progress.step, self._score(measures)):
            self._keep_best()
        if self.checkpoints:
            self._save(self.checkpoints)
        self.worker.report(metrics)

    def _save(self, checkpoints: Keeper) -> None:
        optimizers, progress = self.stepper.optimizers, self.progress.dump()
        if plain := optimizers.dump_plain():
            progress["optimizer"] = plain
        tensors = {**optimizers.dump(), **self.stepper.own()}
        checkpoints.save(Snapshot(weights.dump(self.model), tensors, progress, self.best), self.worker)

    def _score(self, measures: Mapping[str, float]) -> float | None:
        """Return what decides on the best epoch, lower is better; None if that is the validation loss."""
        name, mode = self.config.train.monitor, self.config.train.monitor_mode
        if name == LOSS or self.valid is None:
            return None
        if name not in measures:
            listed = ", ".join(measures) or "nothing; it has no method measure"
            raise ConfigError(f"train.monitor {name}: expected {LOSS} or what the task measures: {listed}")
        score = measures[name]
        if not math.isfinite(score):
            raise SP500Error(f"{name}, which train.monitor names, is {score} after an epoch")
        return -score if mode == "max" else score

    def _train(self, number: int) -> PartialEpoch:
        """Train for one pass, or the rest of it."""
        train, data = self.config.train, self.config.data
        done = self.progress.partial or PartialEpoch()
        self.progress.partial = done
        started, loss_sum = time.perf_counter() - done.seconds, self._mine(done.loss_sum)
        batches = self.train.epoch(number, self.config.batch_size, shuffle=data.shuffle_train, seed=data.seed)
        recent = list[torch.Tensor]()
        for batch in islice(batches, done.steps, None):
            done.first_batch_seconds = done.first_batch_seconds or time.perf_counter() - started
            if self.progress.step == train.max_steps > 0:
                break
            recent.append(self.stepper.take(self.transforms.apply(batch, number), self.progress.step))
            loss_sum += recent[-1]
            self.progress.step += 1
            done.steps += 1
            done.samples += batch.total
            done.targets += batch.targets
            saves = train.checkpoint_steps and self.progress.step % train.checkpoint_steps == 0
            if saves or len(recent) == CHECKED_STEPS:
                self._check(recent, number, done.steps)
                recent = []
            if self.checkpoints and saves:
                done.loss_sum, done.seconds = float(self.worker.total(loss_sum)), time.perf_counter() - started
                loss_sum = self._mine(done.loss_sum)
                with self.stepper.judged():
                    self._save(self.checkpoints)
                started = time.perf_counter() - done.seconds  # without the time of writing
        self._check(recent, number, done.steps)
        done.loss_sum, done.seconds = float(self.worker.total(loss_sum)), time.perf_counter() - started
        return done

    def _check(self, recent: list[torch.Tensor], epoch: int, steps: int) -> None:
        """Raise the error of the first step whose loss is not finite, of the last ones before `steps` of an epoch."""
        if not recent:
            return
        losses = self.worker.total(torch.stack(recent).double()).tolist()
        for place, loss in enumerate(losses):
            if not math.isfinite(loss):
                back = len(losses) - 1 - place
                trained = epoch if self.progress.step - back > 1 else 0
                what = f"loss of step {steps - back}"
                raise divergence_error(self.config, trained, what, self.losses + losses[:place])
        self.losses = losses

    def _mine(self, loss_sum: float) -> torch.Tensor:
        """Return this rank's part of a sum that was taken over all ranks."""
        return torch.tensor(loss_sum if not self.worker.rank else 0.0, dtype=torch.float64, device=self.worker.device)

    @torch.no_grad()
    def _validate(self) -> tuple[float | None, dict[str, float]]:
        """Return the mean loss over the validation windows, and what the task measures there."""
        if self.valid is None:
            return None, {}
        self.model.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.worker.device)
        measures = evaluation.Measures(self.task, self.worker)
        for batch in self.valid.in_order(evaluation.windows_at_once(self.valid, self.config.batch_size)):
            output = self.model(batch.x)
            loss = self.task.loss(output, batch.y)  # also for nothing: FSDP's ranks compute together
            if batch.count:
                loss_sum += loss
            measures.add(output, batch)
        return float(self.worker.total(loss_sum)) / self.valid.targets, measures.means()

    def outputs(self, splits: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, dict[str, float]]]:
        """Return what the task keeps, and measures, of the best weights' outputs for these splits, on every rank."""
        weights.load(self.model, self.best)
        outputs, measured = {}, {}
        for name, windows in (("valid", self.dataset.valid), ("test", self.dataset.test)):
            if name in splits and windows is not None:
                measures, size = evaluation.Measures(self.task, self.worker), self.config.batch_size
                outputs[name] = evaluation.predict(self.task, self.model, windows, self.worker, size, measures=measures)
                measured[name] = measures.means()
                if not np.isfinite(outputs[name]).all():
                    raise divergence_error(self.config, self.progress.best_epoch, f"{name} output")
        return outputs, measured


def divergence_error(config: RunConfig, epoch: int, what: str, before: Sequence[float] = ()) -> SP500Error:
    """Return the error of a run with numbers that are not finite. `before`: losses before it; epoch 0: untrained."""
    rate = f"lower train.lr ({config.lr:g}) or set train.clip"
    if not epoch:
        return SP500Error(f"the {what} is not finite with untrained weights: look at the task's loss and at the data")
    own = config.own_task or config.model.own
    if own and before and abs(before[-1]) < RISEN * abs(before[0]):
        rate = f"the losses before it did not rise, so look at the task's loss and at the data first; else {rate}"
    return SP500Error(f"training diverged: the {what} of epoch {epoch} is not finite; {rate}")
