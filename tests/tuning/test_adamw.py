"""Members of a pack are updated as torch's own optimiser updates each alone."""

import pytest
import torch

from sp500.tuning.packing.adamw import MemberAdamW

SETTINGS = [(1e-3, 0.0), (1e-3, 0.0), (1e-2, 0.1), (3e-2, 0.0)]


def alone(tensor, gradients, settings):
    lr, decay = settings
    parameter = tensor.clone().requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=lr, weight_decay=decay, fused=True)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [1, 3], [2]])
def test_members_equal_torchs_optimiser_alone_also_after_some_have_left(dtype, kept):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    start = [draw(4, 5, 3), draw(4, 1, 3)]
    gradients = [[draw(*tensor.shape) for tensor in start] for _ in range(6)]
    tensors = [tensor.clone() for tensor in start]
    optimizer = MemberAdamW(tensors, SETTINGS)
    for step, made in enumerate(gradients):
        if step == 3:
            tensors = [tensor[kept] for tensor in tensors]
            optimizer.keep(tensors, kept)
        optimizer.step([gradient if step < 3 else gradient[kept] for gradient in made])
    for place, tensor in enumerate(tensors):
        for row, member in enumerate(kept):
            seen = [made[place][member] for made in gradients]
            torch.testing.assert_close(tensor[row], alone(start[place][member], seen, SETTINGS[member]), rtol=0, atol=0)
