"""The batched linear layers of a pack: outputs of all members at once, and their gradients.

The backward pass is written out for what these layers are, linear with ReLU and dropout between: a graph of autograd
and masks gathered per member took 10 to 18 % more time (docs/LOG.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from sp500.seeding import derive


class Layers:
    """Of each layer the weights [member, input, output] and the biases [member, 1, output]."""

    def __init__(self, models: Sequence[Sequence[nn.Linear]]) -> None:
        self._layers = [_stacked([linears[place] for linears in models]) for place in range(len(models[0]))]

    @property
    def tensors(self) -> list[Tensor]:
        """Weight and bias of the first layer, of the second, and so on."""
        return [tensor for layer in self._layers for tensor in layer]

    def keep(self, places: list[int]) -> None:
        """Go on with some of the members."""
        self._layers = [(weight[places], bias[places]) for weight, bias in self._layers]

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """Outputs [member, batch, output] of windows [batch, window, feature], without dropout."""
        return self._forward(x, None)[-1]

    @torch.no_grad()
    def gradients(
        self, x: Tensor, loss: Callable[[Tensor], Tensor], dropout: Dropout | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Each member's loss [member] by `loss(outputs)`, and its gradient by each of `tensors`."""
        *inputs, outputs = self._forward(x, dropout)
        with torch.enable_grad():
            losses = loss(outputs.requires_grad_())
            (slope,) = torch.autograd.grad(losses.sum(), outputs)
        found: list[Tensor] = []
        for place in reversed(range(len(inputs))):
            found = [inputs[place].transpose(1, 2).bmm(slope), slope.sum(dim=1, keepdim=True), *found]
            if place:
                weight = self._layers[place][0]
                slope = slope.bmm((weight * dropout.scale if dropout else weight).transpose(1, 2))
                # What is positive after ReLU and mask has passed both.
                slope = torch.ops.aten.threshold_backward(slope, inputs[place], 0)
        return losses.detach(), found

    def _forward(self, x: Tensor, dropout: Dropout | None) -> list[Tensor]:
        """Input of each layer [member, batch, input], and the outputs."""
        found = [x.flatten(1).expand(len(self._layers[0][0]), -1, -1)]
        for place, (weight, bias) in enumerate(self._layers):
            if place:
                found[place].relu_()
                if dropout:
                    dropout.apply(found[place])
            found.append(torch.baddbmm(bias, found[place], weight))
        return found


class Dropout:
    """Masks of an epoch for members of those seeds and rates; none is drawn for a rate of 0.

    Members that share seed and rate draw the same masks, as they would alone, so each is drawn once.
    """

    def __init__(self, members: Sequence[tuple[int, float]], epoch: int, like: Tensor) -> None:
        self._places: dict[tuple[int, float], list[int]] = {}
        for place, stream in enumerate(members):
            if stream[1]:
                self._places.setdefault(stream, []).append(place)
        self._generators = [
            torch.Generator(like.device).manual_seed(derive(seed, "dropout", epoch, 0)) for seed, _ in self._places
        ]
        self.scale = like.new_tensor([1 / (1 - rate) for _, rate in members])[:, None, None]
        """What a value that passes is multiplied by [member, 1, 1]."""

    def apply(self, values: Tensor) -> None:
        """Drop some of the values [member, batch, width], in place."""
        for ((_, rate), places), generator in zip(self._places.items(), self._generators, strict=True):
            mask = torch.empty_like(values[0]).bernoulli_(1 - rate, generator=generator).div_(1 - rate)
            for place in places:
                values[place].mul_(mask)


def _stacked(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    return (
        torch.stack([layer.weight.detach().T for layer in layers]).contiguous(),
        torch.stack([layer.bias.detach() for layer in layers])[:, None],
    )
