import itertools

import pytest

from sp500.config import ModelConfig, RunConfig
from sp500.errors import ConfigError
from sp500.tuning import space


def test_grid18_is_every_combination_once():
    trials = space.grid(RunConfig(), space.grid18())
    wanted = set(itertools.product((32, 64, 128), (1e-3, 3e-3, 1e-2), (0.0, 0.2)))
    assert {(one.config.model.hidden, one.config.train.lr, one.config.model.dropout) for one in trials} == wanted
    assert len(trials) == 18
    assert all(one.config.train.epochs == 25 for one in trials)


def test_trials_differ_from_the_base_in_their_overrides_alone():
    base = RunConfig(model=ModelConfig(layers=3))
    trial = space.trial(base, {"model.hidden": 32, "data.window": 20})
    assert trial.config == base.model_copy(
        update={
            "model": base.model.model_copy(update={"hidden": 32}),
            "data": base.data.model_copy(update={"window": 20}),
        }
    )


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "empty"),
        ({"model.hidden": ()}, "model.hidden"),
        ({"model.hiden": (32,)}, "model.hiden"),
        ({"modle.hidden": (32,)}, "modle.hidden"),
        ({"model.hidden": (32, "wide")}, "wide"),
        ({"model.dropout": (0.1, 1.5)}, "1.5"),
        ({"model.hidden": (32, 32)}, "twice"),
    ],
)
def test_space_that_is_none_is_refused_by_name(axes, said):
    with pytest.raises(ConfigError, match=said):
        space.grid(RunConfig(), axes)


def test_key_is_that_of_the_configs_wherever_they_run():
    first, second = RunConfig(), RunConfig(num_workers=4)
    axes = {"model.hidden": (8, 16)}
    assert space.key(space.grid(first, axes)) == space.key(space.grid(second, axes))
    assert space.key(space.grid(first, axes)) != space.key(space.grid(first, {"model.hidden": (8, 32)}))
