import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp500.config import ModelConfig, RunConfig
from sp500.errors import ConfigError
from sp500.tuning import space
from sp500.tuning.space import PRESETS, Choice, Integers, Space, Uniform


@pytest.fixture
def file(tmp_path):
    """Writes a YAML file and returns its path."""

    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_grid18_is_every_combination_once():
    trials = space.grid(RunConfig(), PRESETS["grid18"]())
    wanted = set(itertools.product((32, 64, 128), (1e-3, 3e-3, 1e-2), (0.0, 0.2)))
    assert {(one.config.model.hidden, one.config.train.lr, one.config.model.dropout) for one in trials} == wanted
    assert len(trials) == PRESETS["grid18"]().size == 18
    assert all(one.config.train.epochs == 25 for one in trials)


def test_grid108_is_grid18_with_six_seeds_each():
    trials = space.grid(RunConfig(), PRESETS["grid108"]())
    assert len({one.id for one in trials}) == len(trials) == 108
    assert {one.id for one in space.grid(RunConfig(), PRESETS["grid18"]())} == {
        one.id for one in trials if one.config.train.seed == 0
    }
    assert {one.config.train.seed for one in trials} == set(range(6))


def test_lstm12_is_twelve_lstms_over_a_base_that_is_none():
    trials = space.grid(RunConfig(), PRESETS["lstm12"]())
    assert len({one.id for one in trials}) == 12
    assert {one.config.model.kind for one in trials} == {"lstm"}


def test_wide_draws_valid_configs_of_every_kind():
    wide = PRESETS["wide"]()
    space.check(RunConfig(), wide)
    generator = np.random.default_rng(0)
    configs = [space.trial(RunConfig(), wide.draw(generator)).config for _ in range(60)]
    assert {one.model.kind for one in configs} == {"mlp", "lstm", "transformer"}
    assert {one.model.layers for one in configs} == {1, 2, 3}
    assert len({one.fingerprint for one in configs}) == 60
    assert (wide.is_grid, wide.size) == (False, None)


def test_trials_differ_from_the_base_in_their_overrides_alone():
    base = RunConfig(model=ModelConfig(layers=3))
    trial = space.trial(base, {"model.hidden": 32, "data.window": 20})
    model, data = base.model.model_copy(update={"hidden": 32}), base.data.model_copy(update={"window": 20})
    assert trial.config == base.model_copy(update={"model": model, "data": data})


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "empty"),
        ({"model.hidden": ()}, r"model\.hidden .*empty"),
        ({"model.hiden": (32,)}, r"model\.hiden; did you mean model\.hidden\?"),
        ({"modle.hidden": (32,)}, r"did you mean model\.hidden\?"),
        ({"model": (32,)}, r"write model\.kind"),
        ({"model.hidden": (32, "wide")}, r"'wide'.*model\.hidden: "),
        ({"model.dropout": (0.1, 1.5)}, r"1\.5.*less than 1"),
        ({"model.hidden": (32, 32)}, r"model\.hidden names 32 twice"),
        ({"data.tickers": (["KO"], ["KO"])}, r'data\.tickers names \["KO"\]'),
        ({"train.lr": (1, 1.0)}, r"train\.lr names 1 and 1\.0"),
        ({"model.options.flag": (False, "0", 0)}, r"flag names false and 0"),
        ({"model.options.list": ([1], "[1]")}, r'list names \[1\] and "\[1\]"'),
        ({"train.threads": (1, 2)}, "twice"),
        ({"model.kind": ("linear",), "model.hidden": (32,)}, r"model\.hidden .*kind linear"),
        ({"model.options.width": (32,)}, r"model\.options\.width .*kind mlp"),
        ({"train.seed": range(101), "data.seed": range(100)}, "10,100 configs"),
    ],
)
def test_space_that_is_none_is_refused_by_name(axes, said):
    with pytest.raises(ConfigError, match=rf"^search space grid: .*{said}"):
        space.grid(RunConfig(), axes)


def test_setting_that_a_kind_lacks_is_left_out_of_its_trials_and_equal_ones_count_once():
    axes = {"model.kind": ("linear", "mlp"), "model.hidden": (16, 32), "train.lr": (1e-3, 1e-2)}
    trials = space.grid(RunConfig(), axes)
    assert [list(trial.overrides) for trial in trials].count(["model.kind", "train.lr"]) == 2
    assert len(trials) == 2 + 4 == space.distinct(RunConfig(), space.choices("grid", axes))
    assert all(space.choices("grid", axes).contains(trial.overrides) for trial in trials)


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        (Uniform(0.2, 0.1), r"low 0\.2 .*high 0\.1; swap"),
        (Uniform(0.1, 0.1), r"not below"),
        (Uniform(0.0, 0.1, log=True), r"log: true with low 0\.0; raise"),
        (Uniform(0.1, math.inf), "finite"),
        (Uniform(math.nan, 1.0), "finite"),
        (Integers(3, 1), "low 3 .*high 1"),
        (Integers(0, 4, log=True), "raise low"),
        (Choice(()), "has no values"),
    ],
)
def test_faulty_axis_is_refused_with_its_setting_and_a_way_out(axis, said):
    with pytest.raises(ConfigError, match=rf"search space mine: train\.lr .*{said}"):
        Space("mine", {"train.lr": axis})


def test_key_is_that_of_the_configs_wherever_they_run():
    first, second = RunConfig(), RunConfig(num_workers=4)
    axes = {"model.hidden": (8, 16)}
    ids = [[one.id for one in space.grid(base, axes)] for base in (first, second)]
    assert space.key(ids[0]) == space.key(reversed(ids[1]))
    assert space.key(ids[0]) != space.key(one.id for one in space.grid(first, {"model.hidden": (8, 32)}))


def test_file_gives_values_lists_and_ranges(file):
    path = file(
        """
        model.kind: lstm
        model.hidden: [16, 32, 64]
        model.layers: {low: 1, high: 3}
        model.dropout: {low: 0, high: 0.5}
        train.lr: {low: 1e-4, high: 1.0e-2, log: true}
        train.weight_decay: [0, 1e-4]
        train.clip: {low: 1, high: 2}
        data.tickers: [[AAPL], [MSFT, KO]]
        data.start: [2000-01-01, null]
        """
    )
    found = space.load(path)
    assert found == Space(
        path,
        {
            "model.kind": Choice(("lstm",)),
            "model.hidden": Choice((16, 32, 64)),
            "model.layers": Integers(1, 3),
            "model.dropout": Uniform(0.0, 0.5),
            "train.lr": Uniform(1e-4, 1e-2, log=True),
            "train.weight_decay": Choice((0, 1e-4)),
            "train.clip": Uniform(1.0, 2.0),  # a real number, whatever its ends look like
            "data.tickers": Choice((["AAPL"], ["MSFT", "KO"])),
            "data.start": Choice(("2000-01-01", None)),
        },
    )
    space.check(RunConfig(), found)
    assert space.trial(RunConfig(), found.draw(np.random.default_rng(0))).config.model.kind == "lstm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"it is empty; write"),
        ("# nothing\n", "it is empty"),
        ("{}", "it is empty"),
        ("- model.hidden", "\\['model.hidden'\\]"),
        ("model.hidden: [16", "YAML"),
        ("train.lrr: [1e-3]", r"did you mean train\.lr\?"),
        ("zzz: [1]", r"zzz; write a key"),
        ("model: {hidden: [16]}", r"write model\.kind"),
        ("model.hidden:", r"model\.hidden has no"),
        ("model.hidden: []", r"model\.hidden has no"),
        ("model.hidden: [16, 16]", r"model\.hidden names 16 twice"),
        ("model.hidden: [16]\nmodel.hidden: [32]", r"duplicate key model\.hidden"),
        ("train.lr: {low: 0.1, high: 0.01}", r"train\.lr has low 0\.1"),
        ("train.lr: {low: 0, high: 0.01, log: true}", r"train\.lr has log: true"),
        ("train.lr: {low: 0.1}", r"train\.lr cannot be .*; write a value, a list"),
        ("train.lr: {low: 0.1, high: 0.2, step: 0.1}", r"train\.lr cannot be .*step"),
        ("train.lr: {low: 0.1, high: wide}", r"train\.lr cannot be .*wide"),
        ("train.lr: {low: 0.1, high: 0.2, log: 1}", r"train\.lr cannot be .*log"),
    ],
)
def test_file_that_is_no_space_is_refused_with_file_key_and_way_out(file, text, said):
    with pytest.raises(ConfigError, match=rf"mine\.yaml: .*{said}"):
        space.load(file(text))


def test_name_of_no_preset_and_no_file_is_refused_with_the_presets():
    with pytest.raises(ConfigError, match=r"grid81: .*\(grid18, grid108, lstm12, wide\)"):
        space.load("grid81")
    assert space.load("wide") == PRESETS["wide"]()


@pytest.mark.parametrize(
    ("base", "axes", "said"),
    [
        ({}, {"train.lrr": Uniform(0.1, 0.2)}, r"unknown setting train\.lrr; did you mean train\.lr\?"),
        ({}, {"model.hidden": Uniform(8.0, 64.0)}, r"model\.hidden: Input should be a valid integer"),
        ({}, {"model.dropout": Uniform(0.5, 1.5)}, r"no valid configuration has model\.dropout = 1\.5; .*less than 1"),
        ({"kind": "linear"}, {"model.hidden": Integers(8, 9)}, r"model\.hidden is not used by model\.kind linear"),
        (
            {"kind": "transformer"},
            {"model.hidden": Choice((8, 30)), "train.lr": Uniform(0.1, 0.2)},
            r"no valid configuration has model\.hidden = 30; .*not a multiple of model\.heads",
        ),
        ({}, {"train.threads": Integers(1, 2)}, "train.threads changes no result of a trial"),
    ],
)
def test_space_that_cannot_be_searched_over_the_base_is_refused(base, axes, said):
    with pytest.raises(ConfigError, match=rf"search space mine: .*{said}"):
        space.check(RunConfig(model=ModelConfig(**base)), Space("mine", axes))


def test_huge_space_is_checked_by_a_sample_that_has_every_value(monkeypatch):
    monkeypatch.setattr(space, "MOST", 300)
    names = ("seed", "epochs", "max_steps", "batch_size")
    huge = {f"train.{name}": Choice(tuple(range(1, 9))) for name in names}
    space.check(RunConfig(), Space("huge", huge))
    assert space.distinct(RunConfig(), Space("huge", huge)) is None
    with pytest.raises(ConfigError, match=r'huge: no valid configuration has model\.kind = "gru"'):
        space.check(RunConfig(), Space("huge", {**huge, "model.kind": Choice(("mlp", "gru"))}))


def test_space_with_some_combinations_that_are_none_is_fine_and_counted():
    axes = {"model.kind": Choice(("mlp", "transformer")), "model.hidden": Integers(4, 11)}
    space.check(RunConfig(), Space("mine", axes))
    assert space.distinct(RunConfig(), Space("mine", axes)) == 8 + 2  # widths 4 and 8 have four heads
    assert space.distinct(RunConfig(), PRESETS["grid108"]()) == 108
    assert space.distinct(RunConfig(), PRESETS["wide"]()) is None


numbers = st.floats(-1e6, 1e6)
seeds = st.integers(0, 2**32 - 1)


@given(numbers, numbers, seeds, st.booleans())
def test_number_drawn_lies_within_its_range(one, other, seed, log):
    low, high = sorted((abs(one) + 1e-9, abs(other) + 1e-9) if log else (one, other))
    axis = Uniform(low, high, log=log)
    if not axis.fault:
        drawn = axis.draw(np.random.default_rng(seed))
        assert low <= drawn <= high
        assert axis.contains(drawn)


@given(st.integers(1, 10**6), st.integers(1, 10**6), seeds, st.booleans())
def test_whole_number_drawn_lies_within_its_range(one, other, seed, log):
    axis = Integers(min(one, other), max(one, other), log=log)
    drawn = axis.draw(np.random.default_rng(seed))
    assert type(drawn) is int
    assert axis.low <= drawn <= axis.high
    assert axis.contains(drawn)


@given(st.lists(st.one_of(st.integers(), st.text(), st.lists(st.text())), min_size=1), seeds)
def test_choice_drawn_is_one_of_the_values(values, seed):
    axis = Choice(tuple(values))
    assert axis.draw(np.random.default_rng(seed)) in values


@pytest.mark.parametrize("axis", [Integers(1, 4), Integers(1, 4, log=True), Choice((1, 2, 3, 4))])
def test_every_value_is_drawn_the_ends_too(axis):
    generator = np.random.default_rng(0)
    assert {axis.draw(generator) for _ in range(200)} == {1, 2, 3, 4}


def test_half_of_the_draws_on_a_log_range_lie_below_the_geometric_mean():
    generator = np.random.default_rng(0)
    axis = Uniform(1e-4, 1e-2, log=True)
    share = np.mean([axis.draw(generator) < 1e-3 for _ in range(2000)])
    assert share == pytest.approx(0.5, abs=0.05)
