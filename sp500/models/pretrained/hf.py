"""Causal language models of transformers, whole or with a LoRA adapter (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from sp500 import hub
from sp500.errors import ConfigError, extra
from sp500.models.shape import Shape

log = logging.getLogger(__name__)

ADAPTER = "lora_"
"""In the names of an adapter's weights."""
TOKENIZERS = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "added_tokens.json", "chat_template*")


class HuggingFace(nn.Module):
    """A causal model of transformers, with or without an adapter of peft; scores of the next token after each."""

    def __init__(self, net: Any, folder: Path, *, adapted: bool) -> None:
        super().__init__()
        self.net, self.folder, self._adapted = net, folder, adapted

    def forward(self, x: Shaped[Tensor, "batch window"]) -> Float[Tensor, "batch window output"]:
        """Return scores of the token after each token."""
        scores: Tensor = self.net(input_ids=x.long(), use_cache=False).logits
        return scores

    def base_names(self) -> frozenset[str]:
        """Return the names of the base's weights: with an adapter, all but its own."""
        return frozenset(name for name in self.state_dict() if ADAPTER not in name) if self._adapted else frozenset()

    def save(self, folder: Path) -> None:
        """Write the model, or only its adapter, in the format of transformers and peft."""
        self.net.save_pretrained(folder)


def build(shape: Shape, *, path: str, adapter_rank: int, adapter_targets: tuple[str, ...]) -> HuggingFace:
    """Build the model of a folder or of the hub: its weights if it has any, else random ones from its config.json.

    In float32: a checkpoint in bfloat16 would otherwise be trained in bfloat16. Raises ConfigError for a folder that
    holds no such model, a context that is longer than the model's, and tokens that it does not know.
    """
    with extra("llm"):
        import transformers
    transformers.utils.logging.disable_progress_bar()
    folder = hub.fetch(path, "model.path")
    settings = _settings(folder)
    scratch = not has_weights(folder)
    if scratch:
        settings.vocab_size = shape.outputs
    _check(settings, shape, path)
    net = _make(folder, settings if scratch or torch.get_default_device().type == "meta" else None)
    if adapter_rank and scratch:
        raise ConfigError(f"model.path {path}: has no weights that an adapter could change; remove model.adapter_rank")
    return HuggingFace(_add_adapter(net, adapter_rank, adapter_targets), folder, adapted=bool(adapter_rank))


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights, not only a config.json.

    Raises ConfigError for those that transformers would read from a pickle, and for those under a name that it does not
    read.
    """
    whole = any(folder.glob("model*.safetensors"))
    # Where this file is, transformers reads an adapter as well.
    adapter = (folder / "adapter_config.json").exists() and not (folder / "adapter_model.safetensors").exists()
    if whole and not adapter:
        return True
    if pickled := sorted(folder.glob("adapter_model.bin" if whole else "*.bin")):
        raise ConfigError(
            f"model.path {folder}: has its weights as a pickle ({pickled[0].name}), which may run code; convert them to"
            " safetensors"
        )
    if not whole and (others := sorted(folder.glob("*.safetensors"))):
        raise ConfigError(
            f"model.path {folder}: has {others[0].name}, and no model.safetensors or model-*.safetensors, which"
            " are the names that are read. Rename the file, or remove it to start from random weights"
        )
    return whole


def copy_tokenizer(source: Path, folder: Path) -> bool:
    """Copy the tokenizer's files of a model's folder. Returns whether there were any."""
    files = sorted({file for pattern in TOKENIZERS for file in source.glob(pattern)})
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return bool(files)


def _settings(folder: Path) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        settings = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ConfigError(
            f"model.path {folder}: has no usable config.json ({str(error).splitlines()[0]:.200})"
        ) from None
    if settings.get_text_config() is not settings or not getattr(settings, "vocab_size", None):
        raise ConfigError(
            f"model.path {folder}: {settings.model_type} is not a model of text alone, whose config.json has vocab_size"
            " at its top. Of a model of text and images, give a folder with the text model"
        )
    return settings


def _check(settings: Any, shape: Shape, path: str) -> None:
    longest = getattr(settings, "max_position_embeddings", None) or getattr(settings, "n_positions", None)
    if longest and shape.window > longest:
        raise ConfigError(
            f"text.context {shape.window} is above the {longest} positions of model.path {path}; lower it"
        )
    if shape.outputs > settings.vocab_size:
        raise ConfigError(
            f"text.tokenizer has {shape.outputs} tokens and model.path {path} knows {settings.vocab_size}; use the"
            " model's own (text.tokenizer model)"
        )


def _make(folder: Path, settings: Any) -> Any:
    """Make the net of these settings with random weights; None: the folder's. Raises ConfigError for unknown ones."""
    from transformers import AutoModelForCausalLM

    how: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": False}
    try:
        if settings is not None:
            return AutoModelForCausalLM.from_config(settings, **how)
        net, loaded = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, output_loading_info=True, **how
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model.path {folder}: cannot be loaded ({str(error).splitlines()[0]:.200})") from error
    if missing := sorted(loaded["missing_keys"]):  # transformers makes random ones
        raise ConfigError(
            f"model.path {folder}: {len(missing)} weights that its config.json asks for are not in its files "
            f"({', '.join(missing[:3])}): expected those of the whole model. Correct config.json, or fetch them again"
        )
    return net


def _add_adapter(net: Any, rank: int, targets: tuple[str, ...]) -> Any:
    if not rank:
        return net
    with extra("llm"):
        import peft
    modules: Any = list(targets) or "all-linear"
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=modules, task_type="CAUSAL_LM")
    try:
        return peft.get_peft_model(net, settings)
    except ValueError as error:
        names = sorted({name.rpartition(".")[2] for name, part in net.named_modules() if isinstance(part, nn.Linear)})
        raise ConfigError(
            f"model.adapter_targets {', '.join(targets)}: not layers of the model; it has {', '.join(names)}"
        ) from error
