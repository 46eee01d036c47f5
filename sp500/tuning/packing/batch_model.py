"""The models of a pack as one model with batched weights, and the optimiser of its weights.

The backward pass is written out for what these layers are, linear with ReLU and dropout between: a graph of autograd
and masks gathered per member took 10 to 18% more time. torch's fused kernel of AdamW is called directly: through its
optimiser class, step counters and groups took 5 to 8% of a pack's time (docs/LOG.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from sp500.models.dropout import Masks

# torch's defaults, which a member alone has too.
BETAS, EPSILON = (0.9, 0.999), 1e-8
Settings = tuple[float, float]
"""Learning rate and weight decay."""


class BatchModel:
    """Linear layers of all members: of each the weights [member, input, output] and the biases [member, 1, output]."""

    def __init__(self, models: Sequence[Sequence[nn.Linear]]) -> None:
        self._layers = [_stack([linears[place] for linears in models]) for place in range(len(models[0]))]

    @property
    def tensors(self) -> list[Tensor]:
        """Weight and bias of the first layer, of the second, and so on."""
        return [tensor for layer in self._layers for tensor in layer]

    def keep(self, places: list[int]) -> None:
        """Continue with some of the members."""
        self._layers = [(weight[places], bias[places]) for weight, bias in self._layers]

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs [member, batch, output] of windows [batch, window, feature], without dropout."""
        return self._forward(x, None)[-1]

    @torch.no_grad()
    def gradients(
        self, x: Tensor, loss: Callable[[Tensor], Tensor], dropout: Dropout | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return each member's loss [member] by `loss(outputs)`, and its gradient by each of `tensors`."""
        *inputs, outputs = self._forward(x, dropout)
        with torch.enable_grad():
            losses = loss(outputs.requires_grad_())
            (slope,) = torch.autograd.grad(losses.sum(), outputs)
        gradients: list[Tensor] = []
        for place in reversed(range(len(inputs))):
            gradients = [inputs[place].transpose(1, 2).bmm(slope), slope.sum(dim=1, keepdim=True), *gradients]
            if place:
                weight = self._layers[place][0]
                slope = slope.bmm((weight * dropout.scale if dropout else weight).transpose(1, 2))
                # What is positive after ReLU and mask has passed both.
                slope = torch.ops.aten.threshold_backward(slope, inputs[place], 0)
        return losses.detach(), gradients

    def _forward(self, x: Tensor, dropout: Dropout | None) -> list[Tensor]:
        """Return the input of each layer [member, batch, input], and the outputs."""
        inputs = [x.flatten(1).expand(len(self._layers[0][0]), -1, -1)]
        for place, (weight, bias) in enumerate(self._layers):
            if place:
                inputs[place].relu_()
                if dropout:
                    dropout.apply(place - 1, inputs[place])
            inputs.append(torch.baddbmm(bias, inputs[place], weight))
        return inputs


class Dropout:
    """Dropout of members with those seeds and rates; members that share both have the same masks, gathered once."""

    def __init__(self, members: Sequence[tuple[int, float]], like: Tensor) -> None:
        self._members, self._like = list(members), like
        self._masks: dict[tuple[int, float], Masks] = {}
        self.windows = torch.empty(0, dtype=torch.int64)
        """Numbers of the batch's windows in the training set."""
        self.keep(list(range(len(members))))

    @property
    def drops(self) -> bool:
        """True if any member drops anything."""
        return bool(self._places)

    def start(self, epoch: int) -> None:
        """Begin an epoch."""
        for masks in self._masks.values():
            masks.start(epoch)

    def keep(self, places: list[int]) -> None:
        """Continue with some of the members."""
        self._members = [self._members[place] for place in places]
        self._places: dict[tuple[int, float], list[int]] = {}
        for place, stream in enumerate(self._members):
            if stream[1]:
                self._places.setdefault(stream, []).append(place)
        self._masks = {stream: self._masks.get(stream) or self._new(*stream) for stream in self._places}
        self.scale = self._like.new_tensor([1 / (1 - rate) for _, rate in self._members])[:, None, None]
        """The factor of a value that passes [member, 1, 1]."""

    def apply(self, layer: int, values: Tensor) -> None:
        """Drop some of a layer's values [member, batch, width], in place."""
        for stream, places in self._places.items():
            mask = self._masks[stream].of(layer, self.windows, values.shape[2])
            for place in places:
                values[place].mul_(mask)

    def _new(self, seed: int, rate: float) -> Masks:
        return Masks(seed, rate, dtype=self._like.dtype, device=self._like.device)


class MemberAdamW:
    """Updates of tensors [member, ...]; neighbours with the same settings share a call of the kernel."""

    def __init__(self, tensors: Sequence[Tensor], settings: Sequence[Settings]) -> None:
        self._tensors, self._settings = list(tensors), list(settings)
        self._averages = [torch.zeros_like(tensor) for tensor in tensors]
        self._squares = [torch.zeros_like(tensor) for tensor in tensors]
        self._steps = [torch.zeros((), device=tensors[0].device)] * len(tensors)  # one for all

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update the tensors once from their gradients, in place."""
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
        """Continue with some of the members, whose tensors are these now."""
        self._tensors, self._settings = list(tensors), [self._settings[place] for place in places]
        self._averages = [average[places] for average in self._averages]
        self._squares = [square[places] for square in self._squares]


def _stack(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    return (
        torch.stack([layer.weight.detach().T for layer in layers]).contiguous(),
        torch.stack([layer.bias.detach() for layer in layers])[:, None],
    )
