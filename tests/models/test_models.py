"""Models: every kind gives one forecast per window, from that window alone, and can learn."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import nn

from sp500.config import ModelConfig, TrainConfig, kinds
from sp500.models import catalog


def shape(window: int = 5, features: int = 3, outputs: int = 2) -> SimpleNamespace:
    """What a model has to know of a dataset."""
    return SimpleNamespace(window=window, features=features, outputs=outputs, row=(features,), naive_output=0.0)


NETWORKS = {kind: of for kind, of in kinds.models().items() if of.network}
KINDS = pytest.mark.parametrize("kind", [kind for kind, of in NETWORKS.items() if "series" in of.takes])


def build(kind: str, *, window: int = 5, features: int = 3, outputs: int = 2, **keys: float) -> nn.Module:
    small = {"hidden": 8, "layers": 2} if kind != "linear" else {}
    torch.manual_seed(0)
    config = ModelConfig(kind=kind, **{**small, **keys})
    model = catalog.build(config, shape(window, features, outputs))
    nn.init.normal_(model.head.weight)  # as after some training: it starts at zero
    return model


@pytest.mark.parametrize("kind", NETWORKS)
def test_each_kind_names_what_makes_its_network(kind):
    of = kinds.models()[kind]
    parameters = inspect.signature(resolve_name(of.network)).parameters
    assert set(parameters) == {"shape", *of.model_fields} - {"kind"}
    assert of.model_fields["kind"].default == kind


@KINDS
def test_untrained_model_makes_the_naive_forecast(kind):
    model = catalog.build(ModelConfig(kind=kind), shape())
    assert not model(torch.randn(7, 5, 3)).any()


@pytest.mark.parametrize("kind", ["mlp", "lstm", "transformer"])
def test_model_larger_than_the_memory_is_refused_before_it_is_allocated(kind):
    with pytest.raises(MemoryError, match=r"at least .* GiB"):
        catalog.build(ModelConfig(kind=kind, hidden=1_000_000), shape())


def test_model_that_workers_split_has_to_fit_once(monkeypatch):
    config, copies = ModelConfig(hidden=64), catalog.least_copies(TrainConfig(parallel="fsdp"))
    once = sum(weights.nbytes for weights in catalog.build(config, shape()).parameters())
    monkeypatch.setattr(catalog, "total_bytes", lambda: once)
    catalog.build(config, shape(), copies)
    with pytest.raises(MemoryError, match="Adam's moments"):
        catalog.build(config, shape(), catalog.least_copies(TrainConfig(device="cpu")))
    monkeypatch.setattr(catalog, "total_bytes", lambda: once - 1)
    with pytest.raises(MemoryError, match="the whole model"):
        catalog.build(config, shape(), copies)


@KINDS
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize(("window", "features", "outputs"), [(1, 1, 1), (5, 3, 2), (30, 9, 4)])
def test_model_gives_its_outputs_for_each_window(kind, batch, window, features, outputs):
    model = build(kind, window=window, features=features, outputs=outputs)
    assert model(torch.zeros(batch, window, features)).shape == (batch, outputs)


@KINDS
def test_model_takes_float64(kind):
    assert build(kind).double()(torch.zeros(2, 5, 3, dtype=torch.float64)).dtype == torch.float64


@KINDS
def test_forecast_of_a_window_does_not_depend_on_its_neighbours(kind):
    model, x = build(kind).double().eval(), torch.randn(6, 5, 3, dtype=torch.float64)
    changed = x.clone()
    changed[3:] = 100.0
    torch.testing.assert_close(model(x)[:3], model(changed)[:3], rtol=1e-12, atol=1e-12)


@KINDS
def test_every_day_and_feature_of_the_window_matters(kind):
    model, x = build(kind).eval(), torch.randn(4, 5, 3, requires_grad=True)
    model(x).sum().backward()
    assert (x.grad.abs().sum(dim=0) > 0).all()


@KINDS
def test_order_of_days_matters(kind):
    model, x = build(kind).eval(), torch.randn(4, 5, 3)
    assert not torch.allclose(model(x), model(x.flip(1)), atol=1e-5)


@KINDS
def test_every_weight_gets_a_gradient(kind):
    model = build(kind).train()
    model(torch.randn(16, 5, 3)).pow(2).sum().backward()
    silent = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # A shift of all keys cancels in softmax: this bias has no gradient but rounding.
    assert [name for name in silent if "in_proj_bias" not in name] == []


@KINDS
def test_model_can_learn_a_handful_of_windows_by_heart(kind):
    model = build(kind, outputs=1, **({} if kind == "linear" else {"dropout": 0.0, "hidden": 16}))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 5, 3, generator=generator), torch.randn(8, 1, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01


@pytest.mark.parametrize("kind", ["mlp", "lstm", "transformer"])
def test_dropout_drops_in_training_alone(kind):
    model, x = build(kind, dropout=0.5), torch.randn(4, 5, 3)
    model.train()
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("kind", ["mlp", "lstm", "transformer"])
@pytest.mark.parametrize("key", ["hidden", "layers"])
def test_larger_setting_makes_a_larger_model(kind, key):
    def size(**keys: int) -> int:
        return sum(weight.numel() for weight in build(kind, **keys).parameters())

    assert size(**{key: 16}) > size(**{key: 4})


@KINDS
def test_same_seed_makes_the_same_weights(kind):
    first, second = build(kind).state_dict(), build(kind).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_linear_model_is_one_weight_per_day_and_feature():
    model, x = build("linear", outputs=1), torch.randn(4, 5, 3)
    weights = model.head.weight.detach().numpy().reshape(5, 3)
    expected = [(window * weights).sum() + model.head.bias.item() for window in x.numpy()]
    np.testing.assert_allclose(model(x).detach()[:, 0], expected, rtol=1e-5, atol=1e-6)


@KINDS
def test_windows_of_another_shape_are_refused(kind):
    with pytest.raises(TypeCheckError):
        build(kind)(torch.zeros(4, 5))
