"""Image models of timm, from random weights or from those of a local file."""

from __future__ import annotations

import difflib
import logging
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sp500.errors import ConfigError, extra
from sp500.models.shape import Shape

log = logging.getLogger(__name__)

ONE_VALUE = "Expected more than 1 value per channel"
"""Torch's message for a batch of one image whose last layers have one pixel."""


class Timm(nn.Module):
    """A classifier of timm; class scores of images given as rows of scaled pixels."""

    def __init__(self, net: nn.Module, image: tuple[int, ...]) -> None:
        super().__init__()
        self.net, self.image = net, image

    def forward(self, x: Float[Tensor, "batch window feature"]) -> Float[Tensor, "batch output"]:
        """Return class scores."""
        try:
            scores: Tensor = self.net(x.reshape(len(x), *self.image).permute(0, 3, 1, 2))
        except ValueError as error:
            if ONE_VALUE not in str(error):
                raise
            raise ConfigError(
                "batch normalisation cannot take its statistics from one image: a worker's part of a batch, or its last"
                " micro-batch, has no more. Change train.batch_size or train.micro_batch"
            ) from error
        return scores

    def synchronize(self) -> None:
        """Convert as torch does, but keep the activations that timm has in these layers."""
        from timm.layers import convert_sync_batchnorm

        self.net = convert_sync_batchnorm(self.net)


def build(shape: Shape, *, architecture: str, path: str) -> Timm:
    """Build the model of that name for images and classes of this shape, with the weights of `path` if it is set.

    Raises ConfigError for a name that timm does not have, images that are too small for it, and a file that does not
    hold weights of this architecture.
    """
    _import()
    meta = torch.get_default_device().type == "meta"
    model = Timm(_create(shape, architecture), shape.row)
    if meta:
        _check_size(model, shape, architecture)
    elif path:
        model.net = _load(model.net, shape, architecture, Path(path).expanduser())
    return model


def _import() -> None:
    with extra("vision"):
        try:
            import timm  # noqa: F401 - for its errors
        except (RuntimeError, OSError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"timm cannot be imported ({reason:.200}): torchvision is not of torch's build; sp500 doctor names both"
            ) from error


def _create(shape: Shape, architecture: str, **more: Any) -> nn.Module:
    """Create a net for the shape's images and classes."""
    import timm

    name = architecture.partition(".")[0]
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "timm.list_models() has the names"
        raise ConfigError(f"model.architecture {architecture}: timm {timm.__version__} has no model {name}; {hint}")
    height, width, channels = shape.row
    try:
        settings = timm.get_pretrained_cfg(architecture)
        if settings is not None and settings.fixed_input_size:
            more["img_size"] = (height, width)
        net: nn.Module = timm.create_model(architecture, num_classes=shape.outputs, in_chans=channels, **more)
    except (RuntimeError, AssertionError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"model.architecture {architecture}: cannot be made for images of {height} x {width} x {channels} "
            f"({_shorten(error)})"
        ) from error
    return net


def _check_size(model: Timm, shape: Shape, architecture: str) -> None:
    """Check the size of images by one pass of shapes on torch's meta device. Raises ConfigError."""
    height, width, _ = shape.row
    try:
        with torch.no_grad():
            output = model.eval()(torch.empty(1, shape.window, shape.features))
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        raise ConfigError(
            f"model.architecture {architecture}: images of {height} x {width} do not fit it, most likely they are too "
            f"small ({_shorten(error)})"
        ) from error
    finally:
        model.train()
    if output.shape != (1, shape.outputs):
        raise ConfigError(f"model.architecture {architecture}: gives {list(output.shape[1:])}, not one score per class")


def _load(net: nn.Module, shape: Shape, architecture: str, path: Path) -> nn.Module:
    """Return a net with the weights of a file, without those of a head for other classes."""
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model.path {path}: cannot be read as safetensors ({_shorten(error)})") from error
    fresh = net.state_dict()
    left_out = [name for name in _heads(net) if name in state and state[name].shape != fresh[name].shape]
    if left_out:
        classes = len(state[left_out[0]])
        log.warning(
            "model.path %s: %s left out: of %d classes, the data has %d",
            path, " and ".join(left_out), classes, shape.outputs,
        )  # fmt: skip
    state |= {name: fresh[name] for name in left_out}
    # timm resizes embeddings of positions and the first convolution. Its own check of names is off if the number of
    # classes differs from the original's, so the file gets a head of the right shape and counts as the original.
    as_original = {"state_dict": state, "num_classes": shape.outputs, "label_offset": 0}
    try:
        return _create(shape, architecture, pretrained=True, pretrained_cfg_overlay=as_original)
    except ConfigError as error:
        reason = _shorten(error.__cause__ or error)
        raise ConfigError(f"model.path {path}: does not hold weights of {architecture} ({reason})") from error


def _heads(net: nn.Module) -> list[str]:
    """Return the names of the weights that give class scores."""
    settings: Any = net.pretrained_cfg
    names = settings.get("classifier") or ()
    weights = [
        f"{name}.{kind}" for name in ([names] if isinstance(names, str) else names) for kind in ("weight", "bias")
    ]
    return [name for name in weights if name in net.state_dict()]


def _shorten(error: BaseException) -> str:
    return f"{' '.join(str(error).split()):.300}"
