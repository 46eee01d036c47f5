"""Fitting of estimators, whose `fit` is called once in place of the training loop, and their files in a version.

The result is that of the loop: an epoch is a stage of the estimator, such as a tree, or all of it. Memory holds all
windows side by side, as a script with arrays has them.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sp500.config import OwnModel, RunConfig, estimators
from sp500.data.windows import Dataset, Windows, memory_error
from sp500.errors import CheckpointError, ConfigError, DataError, SP500Error
from sp500.formatting import reference_name
from sp500.machine.cores import usable_cores
from sp500.machine.memory import PeakMemory, total_bytes
from sp500.models import catalog
from sp500.plugins import reference, source
from sp500.runs import versions
from sp500.runs.record import EpochMetrics
from sp500.training import evaluation
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import FitResult
from sp500.training.state import TrainingState
from sp500.training.task import Signed, Task
from sp500.training.worker import SoloWorker

FEW = 8
"""Windows by whose answers an estimator is compared with what was read from its files."""
CPU = torch.device("cpu")


def check(config: RunConfig, dataset: Dataset) -> None:
    """Raise ConfigError for settings that an estimator of the user's does not use. Built-in ones were checked."""
    if config.model.own and catalog.is_estimator(config.model, dataset):
        try:
            estimators.check_settings(config)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if config.num_workers:
            raise ConfigError(f"num_workers: {estimators.explain_alone(config.model.kind)}; leave it out")


def fit(
    task: Task,
    dataset: Dataset,
    config: RunConfig,
    checkpoints: Checkpoints | None = None,
    *,
    splits: tuple[str, ...] = ("valid", "test"),
) -> FitResult:
    """Fit the estimator of `config.model`, and write it into a version of `checkpoints`.

    `splits`: those whose outputs are wanted. Raises MemoryError with the bytes that the windows need, DataError for
    targets that are not one number per window, and SP500Error for outputs that are not finite.
    """
    from threadpoolctl import threadpool_limits

    fitting = _Fitting(task, dataset, config)
    with PeakMemory() as peak, threadpool_limits(config.train.threads or usable_cores()):
        started = time.perf_counter()
        network = fitting.run()
        seconds = time.perf_counter() - started
        if checkpoints:
            fitting.save(network, checkpoints)
        outputs = fitting.outputs(network, splits)
    state = fitting.state
    return FitResult(
        epochs=state.epochs,
        best_epoch=state.best_epoch,
        best_loss=state.best_loss if math.isfinite(state.best_loss) else None,
        untrained_loss=state.untrained_loss,
        outputs=outputs,
        peak_worker_bytes=peak.bytes,
        device=CPU.type,
        fit_seconds=seconds,
    )


class _Fitting:
    """One call of `fit`: the estimator, and the state that a version keeps."""

    def __init__(self, task: Task, dataset: Dataset, config: RunConfig) -> None:
        self.task, self.dataset, self.config = task, dataset, config
        self.kind, self.state = reference_name(config.model.kind), TrainingState()
        if dataset.train.targets.ndim != 1:
            raise DataError(f"model.kind {self.kind} forecasts one target per window, and here each row has one")
        self.classes = forecasts_classes(task, config, dataset)
        self.estimator = _build(config, dataset, classes=self.classes)  # here, since it imports its library

    def run(self) -> nn.Module:
        """Fit and judge each stage. Returns the best one, or all of an estimator that cannot be cut."""
        from sp500.models.estimators import network

        dataset, started = self.dataset, time.perf_counter()
        x, y = self._flatten(dataset.train), self._targets(dataset.train)
        valid = (self._flatten(dataset.valid), self._targets(dataset.valid)) if dataset.valid else None
        with source.blame(self.config.model.own):
            network.fit(self.estimator, *self._in_its_type(x, y), valid)
        seconds = time.perf_counter() - started
        fitted = network.FittedEstimator(self.estimator, classes=self.classes, outputs=dataset.outputs)
        losses = self._losses(fitted.stages(x), dataset.train)
        valid_losses: list[float] | list[None] = [None] * len(losses)
        if dataset.valid and valid:
            kind = torch.float64 if x.dtype == np.float64 else torch.float32
            naive = torch.full((len(dataset.valid), dataset.outputs), dataset.naive_output, dtype=kind)
            [self.state.untrained_loss] = self._losses([naive], dataset.valid)
            valid_losses = self._losses(fitted.stages(valid[0]), dataset.valid)
        for stage in self._list_stages(losses, valid_losses, seconds):
            self.state.record(stage, 0)
        self._cut()
        return fitted

    def _targets(self, windows: Windows) -> np.ndarray:
        return windows.targets.astype(np.int64) if self.classes else windows.targets

    def _in_its_type(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        model = self.config.model
        if not model.estimator or not resolve_name(model.estimator).in_float64:
            return x, y
        return x.astype(np.float64, copy=False), y.astype(np.float64, copy=False)

    def _flatten(self, windows: Windows) -> np.ndarray:
        """Return all windows side by side. Raises MemoryError, in the words of the arm that copies windows."""
        needed = int(len(windows) * windows.length * windows.rows[:1].nbytes * self.config.model.copies)
        try:
            if needed > total_bytes():
                raise MemoryError
            return windows.flatten()
        except MemoryError:
            raise memory_error(len(windows), needed) from None

    def _losses(self, stages: Iterable[Tensor], windows: Windows) -> list[float]:
        """Return the mean of the task's loss over windows, of the outputs of each stage. Raises SP500Error."""
        targets = torch.from_numpy(np.array(windows.targets))  # a copy: Ray's object store is read-only
        losses = [float(self.task.loss(outputs, targets)) / len(windows) for outputs in stages]
        if not np.isfinite(losses).all():
            raise SP500Error(f"model.kind {self.kind}: its loss is not finite; look at the data first")
        return losses

    def _list_stages(
        self, losses: list[float], valid_losses: list[float] | list[None], seconds: float
    ) -> Iterable[EpochMetrics]:
        best = math.inf
        for number, (loss, valid_loss) in enumerate(zip(losses, valid_losses, strict=True), 1):
            best = best if valid_loss is None else min(best, valid_loss)
            yield EpochMetrics(
                epoch=number,
                train_loss=loss,
                valid_loss=valid_loss,
                best_loss=None if valid_loss is None else best,
                samples=len(self.dataset.train),
                seconds=seconds / len(losses),
                train_seconds=seconds / len(losses),
                finished=datetime.now(UTC),
            )

    def _cut(self) -> None:
        """Leave the stages up to the best one. One of the user's forecasts with all that it was fitted with."""
        state, model = self.state, self.config.model
        if model.estimator:
            resolve_name(model.estimator).keep(self.estimator, state.best_epoch)
            return
        last = state.epochs[-1]
        state.best_epoch, state.best_loss = last.epoch, math.inf if last.valid_loss is None else last.valid_loss

    def save(self, fitted: nn.Module, checkpoints: Checkpoints) -> None:
        """Write the estimator as the best version. Raises DataError if what is read back answers otherwise."""
        progress = {**self.state.dump(), "epoch": self.state.best_epoch}
        checkpoints.save_files(lambda folder: _write(folder, self.config, self.estimator), progress)
        again = read(checkpoints.folder / "best", self.task, self.config, self.dataset)
        test = self.dataset.test
        x = torch.from_numpy(test.rows[test.starts[:FEW, None] + np.arange(test.length)])
        if not torch.equal(again(x), fitted(x)):
            raise DataError(
                f"model.kind {self.kind}: the predictions differ after save and load; make save write all fitted state"
            )

    def outputs(self, fitted: nn.Module, splits: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Return what the task keeps of the outputs for all windows of these splits. Raises SP500Error."""
        outputs, worker = {}, SoloWorker(CPU)
        for name, windows in (("valid", self.dataset.valid), ("test", self.dataset.test)):
            if name in splits and windows is not None:
                outputs[name] = evaluation.predict(self.task, fitted, windows, worker, self.config.batch_size)
                if not np.isfinite(outputs[name]).all():
                    raise SP500Error(f"model.kind {self.kind}: a {name} output is not finite; look at the data first")
        return outputs


def forecasts_classes(task: Task, config: RunConfig, dataset: Dataset) -> bool:
    """Return whether the targets are classes: as the task says, or whole numbers."""
    if config.task_kind.forecasts:
        return config.task_kind.forecasts == "classes"
    return (isinstance(task, Signed) and task.direction) or dataset.train.targets.dtype.kind in "iub"


def hash_files(folder: Path) -> str:
    """Return one hash of all files of a version. Raises OSError."""
    paths = sorted(path for path in folder.iterdir() if path.name != versions.MANIFEST)
    lines = (f"{versions.digest(path.read_bytes())}  {path.name}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read(folder: Path, task: Task, config: RunConfig, dataset: Dataset) -> nn.Module:
    """Read the fitted estimator in a version's folder.

    Raises CheckpointError for files of another kind of estimator, with types that it has not, or that lead out of it.
    """
    from sp500.models.estimators import network, storage

    classes = forecasts_classes(task, config, dataset)
    estimator = _build(config, dataset, classes=classes)
    if isinstance(estimator, network.Stored):
        estimator.load(str(folder))
    else:
        expected = type(estimator)
        estimator = storage.load(folder, _allowed(config, estimator))
        if type(estimator) is not expected:
            given = type(estimator).__name__
            raise CheckpointError(f"{folder / storage.FILE} holds {given}, and the run is of {expected.__name__}")
    if config.model.estimator:
        try:
            resolve_name(config.model.estimator).check(estimator)
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{folder / storage.FILE} is damaged: {error}") from error
    return network.FittedEstimator(estimator, classes=classes, outputs=dataset.outputs)


def _build(config: RunConfig, dataset: Dataset, *, classes: bool) -> Any:
    valid = dataset.valid is not None
    return catalog.build_estimator(config.model, dataset, config.train, classes=classes, valid=valid)


def _write(folder: Path, config: RunConfig, estimator: Any) -> None:
    """Write the estimator's files: by itself, or by skops. Raises DataError for what a version cannot hold."""
    from sp500.models.estimators import network, storage

    if isinstance(estimator, network.Stored):
        estimator.save(str(folder))
    else:
        storage.save(estimator, folder, _allowed(config, estimator))
    names = {path.name: path.is_file() and bool(versions.FILE.fullmatch(path.name)) for path in folder.iterdir()}
    if not names or not all(names.values()):
        wrong = ", ".join(name for name, is_right in names.items() if not is_right) or "nothing"
        raise DataError(
            f"{type(estimator).__name__}.save wrote {wrong}, expected files in the folder itself, with names of "
            "letters, digits, '.', '-' and '_'"
        )


def _allowed(config: RunConfig, estimator: object) -> Any:
    """Return the types of which the file may consist: a built-in kind's, or of packages that the user's code names."""
    from sp500.models.estimators import storage

    if not isinstance(config.model, OwnModel):
        return storage.Allowed(types=resolve_name(config.model.estimator).types)
    package = type(estimator).__module__.partition(".")[0]
    try:
        installed = reference.parse(f"{package}:{type(estimator).__name__}", "model", ()).installed
    except ConfigError:  # the user's own file
        installed = False
    return storage.Allowed(packages=frozenset({"sklearn", *([package] if installed else [])}))
