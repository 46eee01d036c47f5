import math

import pytest

from sp500.config import ModelConfig, RunConfig
from sp500.errors import ConfigError, DataError
from sp500.runs.trials import Ledger, TrialResult
from sp500.studies.settings import SearchSettings
from sp500.tuning import space, suggest
from sp500.tuning.arm import Arm, Collector
from sp500.tuning.space import PRESETS, Choice, Integers, Space, Uniform, candidates, choices
from sp500.tuning.suggest import count_trials, load_method

METHODS = tuple(suggest.METHODS)
NAMES = dict.fromkeys(METHODS, "wide") | {"grid": "grid108", "cmaes": "grid108"}
"""A space for each method, the hardest that it takes."""


def suggester(method, candidates, total, seed):
    """The search by that method, as a plan decides it."""
    return load_method(method)(candidates, count_trials(method, candidates, total), seed)


def result(trial, loss=None, status="ok"):
    """The result of training: by default the distance of the learning rate from 3e-3."""
    scored = abs(trial.config.train.lr - 3e-3) if loss is None else loss
    score = scored if status == "ok" else None
    reported = TrialResult(id=trial.id, overrides=trial.overrides, status=status, valid_loss=score)
    return TrialResult.model_validate_json(reported.model_dump_json())  # as the ledger returns it


def made(method, total, name="grid108", seed=0, told=(), base=None):
    made = suggester(method, candidates(base or RunConfig(), PRESETS[name]()), total, seed)
    for one in told:
        made.tell(one)
    return made


def rest(suggester, pack=5, tell=True):
    """All that is left, asked a pack at a time and told after each; cmaes always is, since it waits for results."""
    trials = []
    while asked := suggester.ask(pack):
        assert len(asked) <= pack
        trials += asked
        for one in asked if tell or isinstance(suggester, load_method("cmaes")) else ():
            suggester.tell(result(one))
    assert suggester.ask(pack) == []
    return trials


def ids(trials):
    return [one.id for one in trials]


@pytest.mark.parametrize("method", METHODS)
def test_grid_is_tried_in_full_without_a_total(method):
    asked = rest(made(method, None, "grid18"), pack=7)
    assert sorted(ids(asked)) == sorted(ids(space.grid(RunConfig(), PRESETS["grid18"]())))


@pytest.mark.parametrize(
    ("method", "name"),
    [("grid", "grid108"), *((m, n) for m in METHODS[1:] for n in PRESETS if (m, n) != ("cmaes", "wide"))],
)
@pytest.mark.parametrize("tell", [True, False])
def test_search_asks_for_its_total_of_different_configs(method, name, tell):
    total = 12
    search = made(method, total, name)
    asked = rest(search, tell=tell)
    assert len(set(ids(asked))) == len(asked) == search.total == total
    assert all(one == space.trial(RunConfig(), one.overrides) for one in asked)
    assert all(PRESETS[name]().contains(one.overrides) for one in asked)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("failed", [True, False])
def test_resumed_search_asks_for_the_rest_and_nothing_twice(method, failed):
    whole = rest(made(method, 20), tell=not failed)
    status = "failed" if failed else "ok"
    told = [result(one, status=status) for one in whole[:13]]
    again = made(method, 20, told=[*told, *told])
    left = rest(again, pack=4)
    assert len(left) == 7
    assert len({*ids(whole[:13]), *ids(left)}) == 20
    assert again.total == 20


@pytest.mark.parametrize("method", METHODS)
def test_search_stopped_in_the_middle_goes_on_to_the_same_configs(method):
    whole = rest(made(method, 24), pack=4)
    told = [result(one) for one in whole[:16]]
    assert ids(rest(made(method, 24, told=told), pack=4)) == ids(whole[16:])


class Slots(Arm):
    """An arm that runs three trials at once and ends the oldest. A kill: it ends after some results."""

    name = "slots"

    def __init__(self, kill_after=math.inf):
        self.kill_after, self.started, self.running = kill_after, [], []

    def run(self, collector):
        ended = 0
        while ended < self.kill_after:
            while len(self.running) < 3 and (pack := collector.take()):
                self.running += pack
                self.started += pack
            if not self.running:
                return
            collector.add(result(self.running.pop(0)))
            ended += 1

    def build_failure(self, trial, reason):
        raise AssertionError


HILL = """
import random

class Hill:
    \"\"\"Random draws, then neighbours of the best: each setting is drawn again with probability 0.3.\"\"\"
    at_once = 2

    def __init__(self, axes, seed):
        self.axes, self.random, self.best = axes, random.Random(seed), (float("inf"), None)

    def ask(self, count):
        new = [{key: axis.at(self.random.random()) for key, axis in self.axes.items()} for _ in range(count)]
        old = self.best[1] or {}
        keep = lambda key: key in old and self.random.random() > 0.3
        return [{key: old[key] if keep(key) else values[key] for key in values} for values in new]

    def tell(self, values, score):
        self.best = min(self.best, (score, values), key=lambda pair: pair[0])
"""


@pytest.fixture
def hill(tmp_path):
    (tmp_path / "hill.py").write_text(HILL)
    return f"{tmp_path}/hill.py:Hill"


@pytest.mark.parametrize("method", [*METHODS, "own"])
def test_killed_search_runs_what_was_running_and_then_what_it_would_have_tried(method, hill, tmp_path):
    method, total, whole = hill if method == "own" else method, 26, Slots()
    name = NAMES.get(method, "wide")
    whole.run(Collector(made(method, total, name), Ledger(tmp_path), whole, lambda result, running: None))
    for kills in ((1,), (7, 5), (13, 3, 1)):
        folder = tmp_path / str(kills)
        folder.mkdir()
        started, running = [], []
        for kill_after in (*kills, math.inf):
            arm = Slots(kill_after)
            arm.run(Collector(made(method, total, name), Ledger(folder), arm, lambda result, running: None))
            assert arm.started[: len(running)] == running
            started += arm.started[len(running) :]
            running = arm.running
        assert ids(started) == ids(whole.started)


@pytest.mark.parametrize("method", ["grid", "random"])
def test_configs_do_not_depend_on_what_was_finished_when_it_stopped(method):
    whole = rest(made(method, 20))
    told = [result(one) for one in reversed(whole[::3])]
    left = rest(made(method, 20, told=told), pack=3)
    assert {*ids(left)} == {*ids(whole)} - {one.id for one in told}


@pytest.mark.parametrize("method", METHODS)
def test_search_that_was_finished_asks_for_nothing(method):
    told = [result(one) for one in rest(made(method, 10))]
    assert made(method, 10, told=told).ask(5) == []


@pytest.mark.parametrize("method", METHODS)
def test_seed_decides_the_configs(method):
    first, again, other = (ids(rest(made(method, 12, seed=seed))) for seed in (1, 1, 2))
    assert first == again
    assert set(first) != set(other)


@pytest.mark.parametrize("method", ["grid", "random"])
def test_larger_search_holds_the_smaller(method):
    assert set(ids(rest(made(method, 9)))) < set(ids(rest(made(method, 18))))


def test_part_of_a_grid_is_in_the_order_of_the_grid_and_a_larger_total_is_all_of_it():
    every = ids(space.grid(RunConfig(), PRESETS["grid108"]()))
    asked = ids(rest(made("grid", 30)))
    assert asked == [one for one in every if one in set(asked)]
    assert asked != every[:30]
    assert made("grid", 500, "grid18").total == len(rest(made("grid", 500, "grid18"))) == 18


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_combinations_that_are_no_config_are_drawn_again(method):
    mixed = Space("mixed", {"model.kind": Choice(("mlp", "transformer")), "model.hidden": Integers(4, 11)})
    asked = rest(suggester(method, candidates(RunConfig(), mixed), 10, 0), pack=3)
    assert len(set(ids(asked))) == 10
    assert {one.config.model.hidden for one in asked if one.config.model.kind == "transformer"} == {4, 8}
    with pytest.raises(ConfigError, match="mixed: has 10 different configs"):
        suggester(method, candidates(RunConfig(), mixed), 11, 0)


@pytest.mark.parametrize("method", METHODS)
def test_results_of_another_space_or_base_count_for_nothing(method):
    strangers = [
        result(space.trial(RunConfig(), {"model.hidden": 32})),
        result(space.trial(RunConfig(), {**rest(made("grid", 1))[0].overrides, "model.hidden": 8})),
        *map(result, rest(made(method, 6, base=RunConfig(model=ModelConfig(layers=1))))),
    ]
    assert ids(rest(made(method, 6, told=strangers))) == ids(rest(made(method, 6)))


def test_tpe_learns_from_results_waits_for_none_and_guesses_by_itself():
    told = [result(one) for one in rest(made("tpe", 20, "wide"))]
    bad = [one.model_copy(update={"valid_loss": -one.valid_loss}) for one in told]
    asked = [made("tpe", 40, "wide", told=results).ask(8) for results in (told, bad)]
    assert set(ids(asked[0])).isdisjoint(ids(asked[1]))
    assert [len(one) for one in asked] == [8, 8]
    # Random draws are left for the last resort.
    assert set(ids(rest(made("tpe", 30, "wide")))).isdisjoint(ids(rest(made("random", 30, "wide"))))


def test_tpe_takes_lists_as_choices():
    lists = choices("lists", {"data.tickers": (["AAPL"], ["MSFT", "KO"]), "train.seed": range(10)})
    asked = rest(suggester("tpe", candidates(RunConfig(), lists), 20, 0))
    assert {one.config.data.tickers for one in asked} == {("AAPL",), ("MSFT", "KO")}
    again = suggester("tpe", candidates(RunConfig(), lists), 20, 0)
    for one in asked[:15]:
        again.tell(result(one))
    assert {*ids(rest(again))} == {*ids(asked[15:])}


@pytest.mark.parametrize(
    ("method", "name", "total", "said"),
    [
        ("grid", "wide", None, r"wide: .*model\.layers"),
        ("random", "wide", None, "wide: .*--trials"),
        ("tpe", "wide", None, "--trials"),
        ("random", "grid18", 19, "grid18: .*18 .*19"),
        ("tpe", "grid18", 19, "grid18: .*18 .*19"),
        ("grid", "grid18", 0, "grid18: 0 .*1"),
        ("cmaes", "wide", 9, r"wide: model\.kind .*cmaes"),
    ],
)
def test_search_that_cannot_be_done_is_refused_before_it_starts(method, name, total, said):
    with pytest.raises(ConfigError, match=said):
        made(method, total, name)


@pytest.mark.parametrize("method", METHODS)
def test_space_that_does_not_fit_the_base_is_refused_before_it_starts(method):
    with pytest.raises(ConfigError, match=r"model\.kind linear"):
        made(method, 5, "grid18", base=RunConfig(model=ModelConfig(kind="linear")))


def test_random_draws_spread_over_a_range():
    axis = Space("lr", {"train.lr": Uniform(1e-4, 1e-2, log=True)})
    rates = [one.config.train.lr for one in suggester("random", candidates(RunConfig(), axis), 200, 0).ask(200)]
    assert sum(rate < 1e-3 for rate in rates) == pytest.approx(100, abs=25)


def test_points_of_a_sobol_sequence_fill_every_cell():
    axes = {"train.lr": Uniform(0.1, 0.2), "model.dropout": Uniform(0.0, 0.4)}
    search = suggester("qmc", candidates(RunConfig(), Space("mine", axes)), 16, 3)
    points = [trial.overrides for trial in search.ask(16)]
    cells = {(int((point["train.lr"] - 0.1) / 0.025), int(point["model.dropout"] / 0.1)) for point in points}
    assert len(cells) == 16


def test_methods_for_ranges_come_closer_than_random_draws():
    axes = {"train.lr": Uniform(1e-4, 1e-1, log=True)}
    best = {}
    for method in ("gp", "cmaes", "random"):
        search = suggester(method, candidates(RunConfig(), Space("mine", axes)), 22, 0)
        losses = []
        while asked := search.ask(1):
            losses.append(abs(math.log(asked[0].overrides["train.lr"] / 3e-3)))
            search.tell(result(asked[0], losses[-1]))
        best[method] = min(losses)
    assert best["gp"] < best["cmaes"] < 0.02 < best["random"]


LISTS = {"model.hidden": (4, 8, 16, 32), "model.dropout": (0.0, 0.1, 0.2), "train.seed": range(9)}
SPACES = {
    "lists": choices("lists", LISTS),
    "ranges": Space("ranges", {"train.lr": Uniform(1e-4, 1e-1, log=True), "model.hidden": Integers(4, 64)}),
    "both": Space("both", {"train.lr": Uniform(1e-4, 1e-1, log=True), "model.hidden": Choice((4, 8, 16))}),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("method", [*METHODS, "own"])
def test_each_method_searches_lists_ranges_and_both_or_refuses_by_name(method, name, hill):
    method = hill if method == "own" else method
    if method == "grid" and name != "lists":
        with pytest.raises(ConfigError, match=f"{name}: grid"):
            suggester(method, candidates(RunConfig(), SPACES[name]), 20, 0)
        return
    asked = rest(suggester(method, candidates(RunConfig(), SPACES[name]), 20, 0))
    assert len(set(ids(asked))) == 20


OWN_FAULTS = {
    "no method tell": ("def tell", "def told", "add 'def tell"),
    "values": ("axis.at(self.random.random())", "7", "ask gave .*7.*grid18"),
    "clock": ("random.Random(seed)", "random.Random()", "interrupted search"),
    "at once": ("at_once = 2", "at_once = 0", "class Hill: at_once is 0"),
    "at once, text": ("at_once = 2", "at_once = 'x'", "at_once is 'x'"),
    "at once, none": ("at_once = 2", "at_once = None", "at_once is None"),
    "nothing new": ("axis.at(self.random.random())", "axis.at(0)", "1,000 calls"),
}


@pytest.mark.parametrize(("old", "new", "reason"), OWN_FAULTS.values(), ids=OWN_FAULTS)
def test_wrong_suggester_of_a_users_is_refused_with_the_reason(old, new, reason, hill, tmp_path):
    (tmp_path / "hill.py").write_text(HILL.replace(old, new))

    def search_and_resume():
        for _ in range(2):
            arm = Slots(kill_after=5)
            arm.run(Collector(made(hill, 18, "grid18"), Ledger(tmp_path), arm, lambda result, running: None))

    with pytest.raises(ConfigError, match=reason):
        search_and_resume()


def test_suggester_of_a_users_may_give_one_new_config_per_call_and_hears_no_nan(hill, tmp_path):
    (tmp_path / "hill.py").write_text(HILL.replace("in range(count)", "in range(1)"))
    search = suggester(hill, candidates(RunConfig(), SPACES["ranges"]), 2000, 0)
    asked = search.ask(2000)
    assert len(set(ids(asked))) == 2000
    search.tell(result(asked[0]).model_copy(update={"monitored": math.nan}))
    assert search._user.best == (math.inf, None)


def test_changed_suggester_of_a_users_is_named_by_its_file(hill, tmp_path):
    (tmp_path / "other.py").write_text(HILL + "# changed")
    kept, wanted = SearchSettings(method=hill), SearchSettings(method=f"{tmp_path}/other.py:Hill")
    assert kept.name_changed_source(wanted).split()[0] == f"{tmp_path}/other.py"
    assert kept.name_changed_source(kept) == ""


def test_error_in_a_suggester_of_a_users_names_its_line(hill, tmp_path):
    (tmp_path / "hill.py").write_text(HILL.replace("        new = ", "        1 / 0\n        new = "))
    with pytest.raises(DataError, match=r"hill\.py:12: ZeroDivisionError"):
        made(hill, 18, "grid18").ask(2)
