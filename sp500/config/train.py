"""Settings by which a model is fitted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sp500.config import optimizers
from sp500.config.frozen import Alias, Frozen, Keyed, setting

PLACES = frozenset(
    {"device", "threads", "per_worker_batch", "micro_batch", "parallel", "recompute", "compile"}
    | {"checkpoint", "checkpoint_steps", "keep"}
)
"""Keys of `train` that say how and where the numbers are computed, and do not decide them."""
LATER_KEYS = (
    *("amp", "schedule", "warmup", "lr_end", "decay", "loss", "quantile"),
    *("optimizer", "optimizer_options", "ema", "monitor", "monitor_mode"),
)
"""Keys of `train` that count in a fingerprint if they are not the default, since older runs do not have them."""


class TrainConfig(Frozen):
    """Settings by which the model is fitted."""

    loss: Literal["mse", "mae", "huber", "quantile"] = setting("mse", agents=True)
    """Loss of a regression of prices, which the verdict is by as well. huber: linear above one training deviation."""
    quantile: float = setting(0.5, gt=0, lt=1, agents=True)
    """Share of targets that should lie below the forecast, for loss quantile."""
    epochs: int = setting(25, gt=0, agents=True)
    """Passes over the training split, at most."""
    batch_size: int = setting(256, gt=0, agents=True)
    """Windows per step over ALL workers, so that results do not depend on their number. Default: 256; for images 64,
    for language 32."""
    per_worker_batch: bool = setting(False, agents=True)
    """Take batch_size and lr per worker: both are multiplied by the number of workers."""
    lr: float = setting(1e-3, gt=0, agents=True)
    """Learning rate. Default: 0.001; 0.003 for images and language."""
    weight_decay: float = setting(0.0, ge=0, agents=True)
    """Weight decay: decoupled in adamw and adafactor, in the others a part of the gradient."""
    optimizer: str = setting("adamw", agents=True)
    """adamw | adam | sgd | rmsprop | adagrad | nadam | radam | adamax | adadelta | adafactor, with options as
    --train.optimizer-options.NAME VALUE, such as momentum."""
    optimizer_options: Annotated[dict[str, optimizers.Option], Keyed()] = Field({})
    """Options of the optimiser by their names in torch."""
    clip: float = setting(1.0, ge=0, agents=True)
    """Largest gradient norm; 0: no clipping."""
    early_stop_patience: int = setting(5, ge=0, agents=True)
    """Epochs without a better validation loss before stopping; 0: never stop early."""
    ema: float = setting(0.0, ge=0, lt=1, agents=True)
    """Decay of the average of the weights that is judged and kept, such as 0.999; 0: the weights themselves."""
    monitor: str = setting("valid_loss", agents=True)
    """Number of an epoch that decides on the best epoch, early stopping and the best config: valid_loss, or one that
    a task of your own measures."""
    monitor_mode: Literal["min", "max"] = setting("min", agents=True)
    """max: a larger number is better."""
    refit: bool = setting(False, agents=True)
    """After validation chose the epoch, train again on training and validation dates for as many epochs."""
    max_steps: int = setting(0, ge=0, agents=True)
    """Stop after this many steps, also inside an epoch; 0: no limit."""
    seed: Annotated[int, Alias("--seed")] = setting(0, ge=0, agents=True)
    """Seed of the initial weights and of dropout."""
    dtype: Literal["float32", "float64"] = setting("float32", agents=True)
    """Number type of data, weights and optimiser."""
    device: Literal["auto", "cpu", "cuda"] = setting("auto", agents=True)
    """auto: a GPU if there is one."""
    threads: int = Field(1, ge=0)
    """CPU threads per process; 0: all cores. One is fastest for models of this size."""
    micro_batch: int = setting(0, ge=0, agents=True)
    """Windows that a worker trains on at once, at most; the gradients of a step are added up. 0: all of its batch."""
    amp: Literal["none", "bfloat16"] = setting("none", agents=True)
    """bfloat16: automatic mixed precision in training. Weights, optimiser, loss and evaluation stay float32."""
    schedule: Literal["constant", "cosine", "linear", "wsd", "onecycle"] = setting("constant", agents=True)
    """Learning rate over the steps of all epochs. wsd: constant, linear over the last fifth after the warm-up.
    onecycle: from lr/25 to lr and down to lr/250000, with the momentum against it (torch's OneCycleLR)."""
    warmup: float = setting(0.0, ge=0, lt=1, agents=True)
    """Share of all steps in which the learning rate rises to lr; 0 of onecycle: 0.3."""
    lr_end: float = setting(0.0, ge=0, le=1, agents=True)
    """Share of lr at the last step of cosine, linear or wsd."""
    decay: Literal["all", "matrices"] = setting("all", agents=True)
    """What weight_decay applies to. matrices: no biases, no norms."""
    parallel: Literal["ddp", "fsdp"] = setting("ddp", agents=True)
    """fsdp: each of several workers holds a part of the weights and of the optimiser's state."""
    recompute: bool = setting(False, agents=True)
    """Gradient checkpointing: compute the activations of repeated layers again in the backward pass."""
    compile: bool = setting(False, agents=True)
    """Compile the model with torch.compile: a minute at the start, and a C++ compiler if there is no GPU."""
    checkpoint: Literal["auto", "whole", "sharded"] = setting("auto", agents=True)
    """State of a model that fsdp splits: whole: rank 0 gathers and writes it | sharded: each worker writes its part |
    auto: sharded if the whole takes over a quarter of a host's memory."""
    checkpoint_steps: int = setting(0, ge=0, agents=True)
    """Steps between checkpoints inside an epoch; 0: only at the end of each."""
    keep: Literal["best", "all"] | Annotated[int, Field(gt=1)] = setting("best", agents=True)
    """Checkpoints that stay: the newest two and the best | all | the newest N and the best."""

    @model_validator(mode="after")
    def _fits_together(self) -> TrainConfig:
        if self.amp != "none" and self.dtype != "float32":
            raise ValueError(f"train.amp {self.amp} is for train.dtype float32, not {self.dtype}")
        if self.checkpoint == "sharded" and self.parallel != "fsdp":
            raise ValueError("train.checkpoint sharded needs train.parallel fsdp, which splits the model")
        if self.monitor == "valid_loss" and self.monitor_mode == "max":
            raise ValueError("train.monitor_mode max: a larger valid_loss is not better; name a train.monitor")
        if self.quantile != 0.5 and self.loss != "quantile":
            raise ValueError(f"train.quantile is not used by train.loss {self.loss}; set train.loss quantile")
        optimizers.check(self.optimizer, self.optimizer_options)
        if self.lr_end and self.schedule in ("constant", "onecycle"):
            raise ValueError(
                f"train.lr_end is not used by train.schedule {self.schedule}; choose cosine, linear or wsd"
            )
        if self.refit and (self.schedule != "constant" or self.warmup):
            raise ValueError(
                "train.refit trains for another number of steps: it needs train.schedule constant without train.warmup"
            )
        return self
