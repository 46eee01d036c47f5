"""Which network."""

from __future__ import annotations

from pathlib import PurePath

from pydantic import Field, JsonValue, field_validator, model_validator

from sp500.config.frozen import Frozen
from sp500.plugins import contract, reference
from sp500.plugins.reference import Reference

MODEL_KEYS: dict[str, frozenset[str]] = {
    "linear": frozenset(),
    "mlp": frozenset({"hidden", "layers", "dropout"}),
    "lstm": frozenset({"hidden", "layers", "dropout"}),
    "transformer": frozenset({"hidden", "layers", "heads", "dropout"}),
    "cnn": frozenset({"hidden", "layers", "dropout"}),
    "gpt": frozenset({"hidden", "layers", "heads", "dropout"}),
    "hf": frozenset({"path", "adapter_rank", "adapter_targets"}),
    "timm": frozenset({"architecture", "path"}),
}
OWN_KEYS = ("hidden", "layers", "heads", "dropout", "options")
"""What a model of the user's may read."""


class ModelConfig(Frozen):
    """Which network."""

    kind: str = "mlp"
    """linear | mlp | lstm | transformer | cnn, timm (images) | gpt, hf (language) | your own: FILE.py:NAME or
    package.module:NAME, with its options as --model.options.NAME VALUE. Default: mlp, cnn or gpt, by the task."""
    hidden: int = Field(64, gt=0)
    """Width of a hidden layer; channels of the last block of a cnn."""
    layers: int = Field(2, gt=0)
    """Hidden layers, or blocks of a cnn."""
    heads: int = Field(4, gt=0)
    """Attention heads (transformer, gpt)."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Share of activations dropped in training."""
    path: str = ""
    """Of hf: folder with a config.json, and with weights unless it starts from random ones; or a name on the hub.
    Of timm: .safetensors file of weights. Default: random ones."""
    architecture: str = Field("", pattern=r"^[\w.]*$")
    """Of timm: name of the model, such as resnet18 or vit_tiny_patch16_224."""
    adapter_rank: int = Field(0, ge=0)
    """Rank of a LoRA adapter, which alone is trained; 0: all weights are."""
    adapter_targets: tuple[str, ...] = ()
    """Names of the layers that an adapter changes, such as q_proj. Default: all linear ones but the last."""
    options: dict[str, JsonValue] = Field({})
    """Options of a model of your own, by name."""

    @field_validator("kind")
    @classmethod
    def _is_a_model(cls, kind: str) -> str:
        if kind not in MODEL_KEYS:
            reference.parse(kind, "model", MODEL_KEYS)
        return kind

    @model_validator(mode="after")
    def _only_used_keys(self) -> ModelConfig:
        used = frozenset(OWN_KEYS) if self.own else MODEL_KEYS[self.kind]
        for name, field in type(self).model_fields.items():
            if name != "kind" and name not in used and getattr(self, name) != field.default:
                way_out = "name a model of your own with --model.kind" if name == "options" else "leave it out"
                raise ValueError(f"model.{name} is not used by model.kind {self.kind}; {way_out}")
        if own := self.own:
            contract.check_model(own, self.options)
        if self.kind == "hf" and not self.path:
            raise ValueError("model.kind hf needs model.path")
        if self.kind == "timm":
            self._check_timm()
        if self.adapter_targets and not self.adapter_rank:
            raise ValueError("model.adapter_targets needs a model.adapter_rank above 0")
        if self.kind in ("transformer", "gpt") and self.hidden % self.heads:
            raise ValueError(f"model.hidden {self.hidden} is not a multiple of model.heads {self.heads}")
        return self

    def _check_timm(self) -> None:
        if not self.architecture:
            raise ValueError("model.kind timm needs model.architecture, the name of a model of timm such as resnet18")
        if self.path and PurePath(self.path).suffix != ".safetensors":
            raise ValueError(
                f"model.path {self.path}: expected a .safetensors file. Other files of weights are pickles, which may "
                "run code: convert them with safetensors.torch.save_file"
            )

    @property
    def own(self) -> Reference | None:
        """Reference to the user's own model; None for a built-in one."""
        return None if self.kind in MODEL_KEYS else reference.parse(self.kind, "model", MODEL_KEYS)

    @property
    def used(self) -> dict[str, object]:
        """The kind's own keys and their values; a model of the user's may read all, and is given its options."""
        if self.own:
            return self.model_dump(mode="json", include=set(OWN_KEYS))
        return {name: getattr(self, name) for name in sorted(MODEL_KEYS[self.kind])}

    @property
    def identity(self) -> dict[str, object]:
        """Kind and keys, with a path by its last name."""
        kind = own.identity if (own := self.own) else self.kind
        path = {"path": PurePath(self.path).name} if self.path else {}
        return {"kind": kind, **self.used, **path}
