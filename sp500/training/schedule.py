"""The learning rate from step to step."""

from __future__ import annotations

import math

from sp500.config import TrainConfig

FALL = 0.2
"""Share of the steps after the warm-up in which wsd falls (warm-up, stable, decay: Hu et al. 2024, arXiv:2404.06395).
"""


def lr_factor(train: TrainConfig, step: int, steps: int) -> float:
    """What the learning rate of a step, counted from 0, of `steps` (1 or more) is multiplied by: 1 at its highest."""
    warm = math.ceil(round(train.warmup * steps, 6))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(steps - warm - 1, 1)
    fallen = {
        "constant": 0.0,
        "linear": done,
        "cosine": (1 - math.cos(math.pi * done)) / 2,
        "wsd": max(done - (1 - FALL), 0.0) / FALL,
    }
    return 1 - (1 - train.lr_end) * fallen[train.schedule]
