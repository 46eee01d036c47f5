"""AdamW over the members of a pack, each with a learning rate and weight decay of its own.

torch's fused kernel is called directly. Through its optimiser class, step counters and groups took 5 to 8% of a
pack's time (docs/LOG.md). A test holds the members to torch's optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

# torch's defaults, which a member alone has too.
BETAS, EPSILON = (0.9, 0.999), 1e-8
Settings = tuple[float, float]
"""Learning rate and weight decay."""


class MemberAdamW:
    """Updates of tensors [member, ...]; neighbours with the same settings share a call of the kernel."""

    def __init__(self, tensors: Sequence[Tensor], settings: Sequence[Settings]) -> None:
        self._tensors, self._settings = list(tensors), list(settings)
        self._averages = [torch.zeros_like(tensor) for tensor in tensors]
        self._squares = [torch.zeros_like(tensor) for tensor in tensors]
        self._steps = [torch.zeros((), device=tensors[0].device)] * len(tensors)  # one for all

    def step(self, gradients: Sequence[Tensor]) -> None:
        """One update from the gradients of the tensors, in place."""
        self._steps[0] += 1
        first = 0
        for (lr, decay), alike in groupby(self._settings):
            rows = slice(first, first + len(list(alike)))
            torch._fused_adamw_(
                [tensor[rows] for tensor in self._tensors],
                [gradient[rows] for gradient in gradients],
                [average[rows] for average in self._averages],
                [square[rows] for square in self._squares],
                [],
                self._steps,
                lr=lr,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )
            first = rows.stop

    def keep(self, tensors: Sequence[Tensor], places: list[int]) -> None:
        """Go on with some of the members, whose tensors are these now."""
        self._tensors, self._settings = list(tensors), [self._settings[place] for place in places]
        self._averages = [average[places] for average in self._averages]
        self._squares = [square[places] for square in self._squares]
