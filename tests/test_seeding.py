"""Seeds: one stream per use, the same on every machine, none shared."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sp500.seeding import derive, numpy_generator, torch_generator

seeds = st.integers(0, 2**40)
paths = st.lists(st.one_of(st.text(max_size=3), st.integers(0, 5)), max_size=3)


@given(seed=seeds, path=paths)
def test_seed_fits_63_bits(seed, path):
    assert 0 <= derive(seed, *path) < 2**63


@given(first=st.tuples(seeds, paths), second=st.tuples(seeds, paths))
def test_other_seed_or_path_is_another_stream(first, second):
    same = first == second
    assert (derive(first[0], *first[1]) == derive(second[0], *second[1])) == same


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, "noise"), (0, "noise", 0)),
        ((0, "noise", 1), (0, "noise", 1, 0)),
        ((0, 1), (2**32,)),
        ((0, "ab"), (0, "a", "b")),
        ((0, "1"), (0, 1)),
        ((0, 1, 2), (0, 2, 1)),
        ((0,), (1,)),
    ],
)
def test_paths_that_look_alike_are_different_streams(first, second):
    assert derive(*first) != derive(*second)


def test_small_paths_never_collide():
    parts = ["order", "noise", "weights", "dropout", 1, 2, 3]
    found = [derive(seed, *path) for seed in range(20) for path in itertools.permutations(parts, 3)]
    assert len(set(found)) == len(found)


def test_seed_is_the_same_in_another_process():
    program = "from sp500.seeding import derive; print(derive(7, 'noise', '^GSPC', 3))"
    for hash_seed in ("1", "2"):
        printed = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert int(printed) == derive(7, "noise", "^GSPC", 3)


def test_generators_repeat_for_the_same_path_alone():
    draws = [numpy_generator(0, "a", step).random(100) for step in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert abs(np.corrcoef(draws[0], draws[2])[0, 1]) < 0.4
    states = [torch.rand(100, generator=torch_generator(0, "a", step)) for step in (1, 1, 2)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
