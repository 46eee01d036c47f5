"""DDP without torch's compiler, which it asks in its constructor and around each forward pass.

Both import the whole compiler, a second in every worker, and nothing is compiled here. Where it is imported already,
torch's own class serves.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COMPILER = "torch._dynamo"


class _Plain(DistributedDataParallel):
    # The method below torch's wrapper, which says that a compiler leaves it out.
    _inside_ddp_forward = contextmanager(inspect.unwrap(DistributedDataParallel._inside_ddp_forward))


def import_compiler() -> None:
    """Import torch's compiler before a model is wrapped that will be compiled, for DDP to ask it for its mode."""
    import_module(COMPILER)


def wrap(model: nn.Module, **settings: Any) -> DistributedDataParallel:
    """Return the model under DDP with these settings."""
    if COMPILER in sys.modules:
        return DistributedDataParallel(model, **settings)
    # The mode of a compiler that is not used. The attribute would import it.
    torch._dynamo = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))  # type: ignore[assignment]
    try:
        return _Plain(model, **settings)
    finally:
        del torch._dynamo
