"""The optimiser: torch's AdamW to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sp500.training.optimizer import AdamW


def after_steps(kind: type[torch.optim.AdamW], dtype: torch.dtype, decay: float, reload: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).to(dtype)
    optimizer = kind(model.parameters(), lr=0.01, weight_decay=decay, fused=True)
    x, y = torch.randn(20, 5, dtype=dtype), torch.randn(20, 1, dtype=dtype)
    for number in range(20):
        if reload and number == 10:
            state, optimizer = optimizer.state_dict(), kind(model.parameters(), lr=0.01, weight_decay=decay, fused=True)
            optimizer.load_state_dict(state)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("reload", [False, True], ids=["straight", "reloaded"])
def test_weights_equal_those_of_torchs_adamw_to_the_bit(dtype: torch.dtype, decay: float, reload: bool) -> None:
    ours, torchs = after_steps(AdamW, dtype, decay, reload), after_steps(torch.optim.AdamW, dtype, decay, False)
    assert all(torch.equal(one, other) for one, other in zip(ours, torchs, strict=True))
