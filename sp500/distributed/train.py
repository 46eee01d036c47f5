"""Ray Train: `fit` over N workers.

The driver prepares the data once and puts it into the object store; workers read it from there without a copy. A lost
worker restarts the group, which continues from the run's own last checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ray
import ray.train
from ray.train import DataConfig, FailureConfig, ScalingConfig
from ray.train import RunConfig as TrainRunConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from sp500.config import RunConfig
from sp500.data.shards import stream
from sp500.data.shards.reader import Chunk, ShardSet
from sp500.data.windows import Dataset
from sp500.distributed import capacity, data, preflight, session
from sp500.distributed.local_trainer import LocalTrainer
from sp500.distributed.worker import RayWorker
from sp500.errors import SP500Error
from sp500.runs.store import Run
from sp500.training import checkpoint
from sp500.training.loop import FitResult, fit
from sp500.training.step import DTYPES
from sp500.training.task import Task
from sp500.training.throughput import add_matmul

MAX_RESTARTS = 3
# Ray's own defaults retry some of these for ever.
FAILURES = FailureConfig(max_failures=MAX_RESTARTS, controller_failure_limit=1, max_preemption_failures=10)
# How long ranks wait for each other. The longest wait is for rank 0 while it writes a checkpoint. Ray notices a process
# that dies within seconds.
COLLECTIVE_SECONDS = 1800


@dataclass(frozen=True)
class Assignment:
    """The data and settings that every worker gets.

    `data` refers to the dataset in the object store; None: the worker makes its own. `shards`: the training windows are
    streamed from there, else they are the dataset's. `report`: whether its epochs are the run's. `measure_speed`: what
    a matrix product reaches, after the training.
    """

    task: Task
    config: RunConfig
    run: Run
    data: ray.ObjectRef | None
    shards: ShardSet | None
    checkpoints: Path
    report: bool
    measure_speed: bool


def fit_on_ray(
    task: Task,
    dataset: Dataset,
    config: RunConfig,
    run: Run,
    shards: ShardSet | None = None,
    *,
    spread: bool = False,
    checkpoints: Path | None = None,
    report: bool = True,
    measure_speed: bool = False,
) -> FitResult:
    """Run `fit` with `config.num_workers` workers of the connected cluster, one per node if they are to `spread`.

    Checkpoints go to the run's folder for them unless another is given; with `report` its epochs are the run's, with
    `measure_speed` the result says what a matrix product reaches on the workers. Raises
    ResourcesError when the cluster lacks the workers, SP500Error when training fails.
    """
    gpu = preflight.use_gpu(config.train.device, config.num_workers)
    share = preflight.worker_share(config.num_workers, gpu=gpu, readers=shards is not None)
    run.write_cluster(capacity.resources())
    storage = run.path.resolve() / ".ray"
    # Ray resumes an old run of the same name without a word; the run's own checkpoints are what counts here.
    shutil.rmtree(storage, ignore_errors=True)
    held = None if task.made_by_workers else ray.put(dataset)
    assignment = Assignment(task, config, run, held, shards, checkpoints or run.checkpoints, report, measure_speed)
    trainer = (LocalTrainer if session.owns_cluster() else TorchTrainer)(
        _train,
        train_loop_config={"assignment": assignment},
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo", timeout_s=COLLECTIVE_SECONDS),
        scaling_config=_scaling(config.num_workers, share, gpu=gpu, spread=spread),
        datasets=_datasets(shards, config) if shards else None,
        # Not split: Ray hands blocks to the rank that asks first, so ranks would end at different steps.
        dataset_config=DataConfig(datasets_to_split=[]),
        run_config=TrainRunConfig(name="train", storage_path=str(storage), failure_config=FAILURES),
    )
    result = _run_trainer(trainer)
    shutil.rmtree(storage, ignore_errors=True)
    return result


def _run_trainer(trainer: TorchTrainer) -> FitResult:
    try:
        stop = trainer.stop if isinstance(trainer, LocalTrainer) else None
        result = session.run_in_thread(trainer.fit, stop).return_value
    except ray.train.TrainingFailedError as error:
        raise SP500Error(f"training on Ray failed after {MAX_RESTARTS} restarts: {error}") from error
    if isinstance(result, SP500Error):
        raise result
    assert isinstance(result, FitResult)
    return result


def _scaling(num_workers: int, share: dict[str, float], *, gpu: bool, spread: bool) -> ScalingConfig:
    strategy = "STRICT_SPREAD" if spread else "PACK"
    return ScalingConfig(num_workers=num_workers, use_gpu=gpu, resources_per_worker=share, placement_strategy=strategy)


def _datasets(shards: ShardSet, config: RunConfig) -> dict[str, ray.data.Dataset]:
    """Return one dataset per rank, so that each reads its own shards."""
    ranks = enumerate(stream.assign_shards(shards.shards, config.num_workers))
    shuffle, seed = config.data.shuffle_train, config.data.seed
    return {
        f"train_{rank}": data.build_dataset(shards, mine, shuffle=shuffle, seed=seed, rank=rank)
        for rank, mine in ranks
        if mine
    }


def _train(settings: Mapping[str, Assignment]) -> FitResult | SP500Error:
    """Train as one worker. An error of the settings or data is returned as a value: a restart would only repeat it."""
    assignment = settings["assignment"]
    if not assignment.shards:  # whose readers need more nodes
        capacity.withdraw()
    dataset = assignment.task.prepare(assignment.config) if assignment.data is None else ray.get(assignment.data)
    checkpoints = checkpoint.of_run(assignment.checkpoints, assignment.config, dataset)
    worker = RayWorker(get_device(), assignment.run if assignment.report else None)
    try:
        train = _stream(assignment.shards, assignment.config, worker) if assignment.shards else None
        result = fit(assignment.task, dataset, assignment.config, worker, checkpoints, train=train)
        return add_matmul(result, assignment.config, worker) if assignment.measure_speed else result
    except SP500Error as error:
        return error


def _stream(shards: ShardSet, config: RunConfig, worker: RayWorker) -> stream.Stream:
    """Return this rank's batches from its dataset shard."""
    ranks = stream.assign_shards(shards.shards, worker.world)
    mine: stream.Chunks = _nothing
    if ranks[worker.rank]:
        mine = data.chunks(ray.train.get_dataset_shard(f"train_{worker.rank}"), shards, config.train.epochs)
    dtype = DTYPES[config.train.dtype]
    return stream.Stream(mine, shards, stream.count_windows(ranks), worker.device, dtype, rank=worker.rank)


def _nothing(epoch: int) -> list[Chunk]:
    return []
