"""One seed, as many independent random streams as there are uses of it.

A stream is named by its path (`derive(seed, "noise", "AAPL", 3)`), so any worker can draw copy 3 of AAPL without
drawing copies 0 to 2, and adding a use never shifts another. The price: a renamed path is a different stream.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # spaces of a search import this module, and their --help loads neither
    import numpy as np
    import torch


def derive(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for one use of `seed`, the same on every machine."""
    digest = hashlib.blake2b(json.dumps([seed, *path]).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def numpy_generator(seed: int, *path: str | int) -> np.random.Generator:
    """Return a NumPy generator for one use of `seed`."""
    import numpy as np

    return np.random.default_rng(derive(seed, *path))


def torch_generator(seed: int, *path: str | int) -> torch.Generator:
    """Return a CPU torch generator for one use of `seed`."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *path))
