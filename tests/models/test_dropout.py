"""Dropout: masks that depend on seed, epoch, layer and window alone, and look drawn at random."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sp500.config import ModelConfig
from sp500.models import catalog, dropout

CPU = torch.device("cpu")


def masks(seed: int = 0, rate: float = 0.25, epoch: int = 1) -> dropout.Masks:
    made = dropout.Masks(seed, rate, dtype=torch.float64, device=CPU)
    made.start(epoch)
    return made


def drawn(windows: int = 2000, units: int = 48, layer: int = 0, **key: float) -> np.ndarray:
    return masks(**key).of(layer, torch.arange(windows), units).numpy()


@pytest.mark.parametrize("units", [1, 7, 48])
def test_mask_of_a_window_does_not_depend_on_its_batch(units):
    whole, chosen = drawn(units=units), torch.tensor([1999, 3, 3, 700])
    np.testing.assert_array_equal(masks().of(0, chosen, units), whole[chosen])


def test_mask_of_a_window_is_that_of_a_fresh_process_at_that_epoch():
    made = masks(epoch=1)
    made.of(0, torch.arange(9), 5)
    made.start(4)
    np.testing.assert_array_equal(made.of(0, torch.arange(9), 5), drawn(9, 5, epoch=4))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_dropped_is_the_rate_and_the_mean_stays(rate):
    found = drawn(rate=rate)
    assert set(np.unique(found)) == {0.0, 1 / (1 - rate)}
    # 96,000 values: five standard errors.
    assert abs((found == 0).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / found.size)


def test_units_of_a_layer_and_neighbouring_windows_are_independent():
    found = drawn() - 1
    between_units = np.corrcoef(found.T) - np.eye(48)
    between_windows = np.mean([np.corrcoef(found[:-lag].ravel(), found[lag:].ravel())[0, 1] for lag in (1, 2, 5)])
    assert np.abs(between_units).max() < 5 / np.sqrt(2000)
    assert abs(between_windows) < 5 / np.sqrt(96_000)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 2}, {"layer": 1}])
def test_another_seed_epoch_or_layer_has_unrelated_masks(change):
    first, second = drawn().ravel(), drawn(**change).ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(first.size)


def test_layer_wider_than_the_tape_gets_its_masks(monkeypatch):
    monkeypatch.setattr(dropout, "TAPE", 64)
    found = drawn(100, 200)
    assert found.shape == (100, 200)
    np.testing.assert_array_equal(found[:, :64], found[:, 64:128])


@pytest.mark.parametrize("kind", ["mlp", "lstm", "transformer"])
def test_every_random_number_of_a_model_comes_from_its_source(kind):
    shape = SimpleNamespace(window=5, features=3, outputs=1, row=(3,), naive_output=0.0)
    model = catalog.build(ModelConfig(kind=kind, hidden=8, dropout=0.5), shape).double()
    torch.nn.init.normal_(model.head.weight)
    source = dropout.Source(model, 0, dtype=torch.float64, device=CPU)
    source.start(1)
    x = torch.randn(20, 5, 3, dtype=torch.float64)
    found = []
    for drawn_before, parts in itertools.product((0, 1), ([range(20)], [range(7), range(7, 20)])):
        torch.manual_seed(drawn_before)
        outputs = []
        for part in parts:
            source.windows = torch.tensor(part)
            outputs.append(model(x[list(part)]))
        found.append(torch.cat(outputs))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-12)
    source.start(2)
    assert not torch.allclose(model(x[7:]), found[0][7:])
