"""The built-in models: the settings of each kind, and the place of its network or estimator.

Neither torch nor scikit-learn is imported here.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar

from pydantic import Field, model_validator

from sp500.config.frozen import setting
from sp500.config.model import Forecast, Form, ModelConfig


class Linear(ModelConfig):
    """A linear model of the flattened window."""

    network = "sp500.models.linear:Linear"
    packs = True

    kind: str = setting("linear", agents=True)

    def count_products(self, length: int, features: int) -> int:
        """Return the number of weights."""
        return length * features


class Layered(ModelConfig):
    """Settings of a network of equal hidden layers."""

    hidden: int = setting(64, gt=0, agents=True)
    """Width of a hidden layer; channels of the last block of a cnn."""
    layers: int = setting(2, gt=0, agents=True)
    """Hidden layers, or blocks of a cnn."""
    dropout: float = setting(0.1, ge=0, lt=1, agents=True)
    """Share of activations dropped in training."""


class MLP(Layered):
    """A multi-layer perceptron."""

    network = "sp500.models.mlp:MLP"
    packs = True

    kind: str = setting("mlp", agents=True)

    def count_products(self, length: int, features: int) -> int:
        """Return the number of weights of the hidden layers."""
        return length * features * self.hidden + (self.layers - 1) * self.hidden**2


class LSTM(Layered):
    """A stack of LSTMs."""

    network = "sp500.models.lstm:LSTM"

    kind: str = setting("lstm", agents=True)

    def count_products(self, length: int, features: int) -> int:
        """Return the weights of four gates, times the days."""
        return length * 4 * (features * self.hidden + (2 * self.layers - 1) * self.hidden**2)


class Attention(Layered):
    """Settings of a network with attention."""

    heads: int = setting(4, gt=0, agents=True)
    """Attention heads (transformer, gpt)."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Attention:
        if self.hidden % self.heads:
            raise ValueError(f"model.hidden {self.hidden} is not a multiple of model.heads {self.heads}")
        return self


class Transformer(Attention):
    """An encoder with attention over the days."""

    network = "sp500.models.transformer:Transformer"

    kind: str = setting("transformer", agents=True)

    def count_products(self, length: int, features: int) -> int:
        """Return the weights of projections and feed-forward layers, times the days."""
        return length * 12 * self.layers * self.hidden**2


class CNN(Layered):
    """A convolutional network."""

    network = "sp500.models.cnn:CNN"
    takes: ClassVar[frozenset[Form]] = frozenset({"image"})

    kind: str = setting("cnn", agents=True)


class GPT(Attention):
    """A decoder of tokens."""

    network = "sp500.models.gpt:GPT"
    takes: ClassVar[frozenset[Form]] = frozenset({"tokens"})

    kind: str = setting("gpt", agents=True)


class Pretrained(ModelConfig):
    """Settings of a model of another library, which may start from weights of its own."""

    starts_naive = False

    path: str = ""
    """Of hf: folder with a config.json, and with weights unless it starts from random ones; or a name on the hub.
    Of timm: .safetensors file of weights. Default: random ones."""

    @property
    def identity(self) -> dict[str, object]:
        """The settings that decide the numbers: kind and settings, the path by its last name."""
        return super().identity | ({"path": PurePath(self.path).name} if self.path else {})


class HuggingFace(Pretrained):
    """A causal language model of transformers."""

    network = "sp500.models.pretrained.hf:build"
    takes: ClassVar[frozenset[Form]] = frozenset({"tokens"})
    has_tokenizer = True
    needs = ("llm", ("transformers", "tokenizers", "huggingface_hub", "peft"))

    kind: str = setting("hf", agents=True)
    adapter_rank: int = setting(0, ge=0, agents=True)
    """Rank of a LoRA adapter, which alone is trained; 0: all weights are."""
    adapter_targets: tuple[str, ...] = setting((), agents=True)
    """Names of the layers that an adapter changes, such as q_proj. Default: all linear ones but the last."""

    @model_validator(mode="after")
    def _fits_together(self) -> HuggingFace:
        if not self.path:
            raise ValueError("model.kind hf needs model.path")
        if self.adapter_targets and not self.adapter_rank:
            raise ValueError("model.adapter_targets needs a model.adapter_rank above 0")
        return self


class Timm(Pretrained):
    """An image model of timm."""

    network = "sp500.models.pretrained.timm:build"
    takes: ClassVar[frozenset[Form]] = frozenset({"image"})
    needs = ("vision", ("timm", "torchvision"))

    kind: str = setting("timm", agents=True)
    architecture: str = setting("", pattern=r"^[\w.]*$", agents=True)
    """Of timm: name of the model, such as resnet18 or vit_tiny_patch16_224."""

    @model_validator(mode="after")
    def _fits_together(self) -> Timm:
        if not self.architecture:
            raise ValueError("model.kind timm needs model.architecture, the name of a model of timm such as resnet18")
        if self.path and PurePath(self.path).suffix != ".safetensors":
            raise ValueError(
                f"model.path {self.path}: expected a .safetensors file. Other files of weights are pickles, which may "
                "run code: convert them with safetensors.torch.save_file"
            )
        return self


class Ridge(ModelConfig):
    """Linear regression with a penalty on the squares of the weights."""

    estimator = "sp500.models.estimators.built_in:RIDGE"
    takes: ClassVar[frozenset[Form]] = frozenset({"series"})
    forecasts: ClassVar[frozenset[Forecast]] = frozenset({"numbers"})
    losses = frozenset({"mse"})
    copies = 5.0  # float64 of float32, twice

    kind: str = setting("ridge", agents=True)
    alpha: float = Field(1.0, ge=0)
    """Penalty on the squares of the weights, next to the sum of squared errors."""


class Logistic(ModelConfig):
    """Logistic regression."""

    estimator = "sp500.models.estimators.built_in:LOGISTIC"
    takes: ClassVar[frozenset[Form]] = frozenset({"series"})
    forecasts: ClassVar[frozenset[Forecast]] = frozenset({"classes"})
    losses = frozenset({"mse"})  # the default of train.loss, which no task of classes uses
    copies = 3.0

    kind: str = setting("logistic", agents=True)
    inverse_penalty: float = Field(1.0, gt=0)
    """Inverse of the penalty on the squares of the weights, which scikit-learn calls C."""
    max_iter: int = Field(1000, gt=0)
    """Steps of the solver, at most."""


class HistGBM(ModelConfig):
    """Gradient-boosted trees of binned columns, as scikit-learn's HistGradientBoosting has them."""

    estimator = "sp500.models.estimators.built_in:HIST_GBM"
    takes: ClassVar[frozenset[Form]] = frozenset({"series"})
    losses = frozenset({"mse", "mae", "quantile"})
    copies = 4.25  # float64 and bins of float32, as measured

    kind: str = setting("hist_gbm", agents=True)
    learning_rate: float = Field(0.1, gt=0)
    """Share of each tree's forecast that counts."""
    max_iter: int = Field(100, gt=0)
    """Trees, at most; of classes, for each class."""
    n_iter_no_change: int = Field(10, ge=0)
    """Trees without a better validation loss before stopping; 0: never stop early."""
    max_leaf_nodes: int = Field(31, gt=1)
    """Leaves of a tree, at most."""
    min_samples_leaf: int = Field(20, gt=0)
    """Windows of a leaf, at least."""
    l2_regularization: float = Field(0.0, ge=0)
    """Penalty on the squares of the leaves' values."""
    max_features: float = Field(1.0, gt=0, le=1)
    """Share of the columns among which each split chooses."""

    def after(self, stages: int) -> HistGBM:
        """Return the settings with so many trees."""
        return self.model_copy(update={"max_iter": stages, "n_iter_no_change": 0})


BUILT_IN: dict[str, type[ModelConfig]] = {
    "linear": Linear,
    "mlp": MLP,
    "lstm": LSTM,
    "transformer": Transformer,
    "cnn": CNN,
    "gpt": GPT,
    "hf": HuggingFace,
    "timm": Timm,
    "ridge": Ridge,
    "logistic": Logistic,
    "hist_gbm": HistGBM,
}
"""Settings by kind."""
DEFAULT = "mlp"
