"""Ray Train on a cluster of this process: its controller runs here, and actors that are not used are left out.

`TorchTrainer` starts five processes next to its workers, each of which imports Ray Train, and the workers wait for
three of them. On a cluster that serves one process of one machine, the controller can be in that process, no
autoscaler has to know what is wanted, placement groups end with the cluster, and without datasets none has to be
managed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any
from unittest import mock

from ray.runtime_context import RuntimeContext
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import RayTrainCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.result import Result

from sp500.distributed.local_worker import RayTrainWorker


class LocalTrainer(TorchTrainer):  # type: ignore[misc] # Ray has no types
    """A TorchTrainer whose controller runs in this thread."""

    _task: asyncio.Task[None] | None = None
    _stopping = False

    def stop(self) -> None:
        """End the controller at its next look at the workers. Another thread than that of `fit` may call it."""
        self._stopping = True
        if self._task is not None:
            with suppress(RuntimeError):  # the loop has closed: `fit` returns
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        unused = (PlacementGroupCleanerCallback, *(() if self.datasets else (DatasetsCallback,)))
        return [callback for callback in super()._create_default_callbacks() if not isinstance(callback, unused)]

    def _initialize_and_run_controller(self, **settings: Any) -> Result:
        logging.getLogger("ray.train").setLevel(logging.CRITICAL)  # an actor's messages reached only Ray's log
        settings["scaling_policy"] = _NoAutoscaler(self.scaling_config)

        async def run() -> Result:
            controller = _Controller(**settings)
            self._task = asyncio.create_task(controller.run())
            if self._stopping:  # before there was a task to cancel
                self._task.cancel()
            await self._task
            return controller.get_result()

        return asyncio.run(run())


class _NoAutoscaler(FixedScalingPolicy):  # type: ignore[misc]
    """The requested workers, without an autoscaler."""

    def after_controller_start(self, train_run_context: object) -> None:
        """Ask for nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass


class _WorkerGroup(WorkerGroup):  # type: ignore[misc]
    _worker_cls = RayTrainWorker

    def _init_train_context_on_workers(self, *arguments: Any) -> None:
        # Of the controller as an actor, workers would ask for checkpoints that `ray.train.report` has reported.
        with mock.patch.object(RuntimeContext, "current_actor", None):
            super()._init_train_context_on_workers(*arguments)


class _Controller(TrainController):  # type: ignore[misc]
    worker_group_cls = _WorkerGroup
