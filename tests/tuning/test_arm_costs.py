"""Mode auto: the arm that should end first, for small and large searches, here and on a cluster."""

from dataclasses import replace

import pytest

from sp500.config import RunConfig, TrainConfig
from sp500.runs.store import RunStore
from sp500.runs.trials import TrialResult
from sp500.studies import search_steps
from sp500.tasks import catalog
from sp500.tasks.settings import SyntheticConfig
from sp500.tuning import arm_costs, presets, trial_data
from sp500.tuning.arm import Arm, Collector
from sp500.tuning.arm_costs import Costs
from sp500.tuning.axes import choices
from sp500.tuning.limits import Limits, Plan
from sp500.tuning.space import ConfigTrial, grid

SEEDS = {"train.seed": tuple(range(54)), "train.lr": (1e-3, 1e-2)}


@pytest.fixture(scope="module")
def made():
    return trial_data.prepare([config(1)])


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(arm_costs, "count_processes", lambda _: 2)


def config(epochs: int) -> RunConfig:
    synthetic = SyntheticConfig(samples=4096, features=32)
    return RunConfig(task="synthetic", synthetic=synthetic, train=TrainConfig(epochs=epochs))


def chosen(epochs, made, cluster_cpus=None, **limits):
    plan = Plan(choices("seeds", SEEDS), "grid", 108, "auto", Limits(**limits))
    return Costs(plan, config(epochs), made, cluster_cpus).choose()


@pytest.mark.parametrize(
    ("epochs", "cpus", "arm"),
    [(1, None, "packed"), (2000, None, "packed"), (1, 64, "packed"), (2000, 64, "ray"), (2000, 2, "packed")],
)
def test_ray_is_chosen_only_where_its_cores_make_up_for_its_start(made, epochs, cpus, arm):
    assert chosen(epochs, made, cpus)[0] == arm


def test_reason_names_the_expected_seconds_of_every_arm(made):
    why = chosen(2000, made, 64)[1]
    assert why.startswith("expected for 108 configs are one after another ")
    assert "s on 1 core, packed without Ray " in why
    assert why.endswith("s on 64 cores")


def test_cluster_without_cpus_is_left_out(made):
    arm, why = chosen(2000, made, 0)
    assert arm == "packed"
    assert "Ray Tune" not in why


def test_what_one_arm_alone_can_do_decides(made):
    assert chosen(1, made, workers=2)[0] == "ray"
    assert "one after another" not in chosen(1, made, halving=3)[1]


def test_search_of_many_configs_is_expected_from_some_of_them(made):
    plan = Plan(choices("many", {"train.seed": tuple(range(2000))}), "grid", 2000, "auto", Limits())
    few = replace(plan, trials=500, space=choices("few", {"train.seed": tuple(range(500))}))
    many, some = (Costs(one, config(100), made).choose()[1] for one in (plan, few))
    seconds = [float(why.split("one after another ")[1].split(" s")[0]) for why in (many, some)]
    start = arm_costs.START_SECONDS["sequential"]
    assert (seconds[0] - start) == pytest.approx(4 * (seconds[1] - start), rel=0.05)


READS_VALUES = """
from torch import nn

class Net(nn.Module):
    def __init__(self, config, dataset):
        super().__init__()
        self.layer = nn.Linear(dataset.features * dataset.window, 1)

    def forward(self, x):
        return self.layer(x.flatten(1)) if float(x.sum()) > 0 else 2 * self.layer(x.flatten(1))
"""


def outside(model, **settings):
    """What six rates of a config are expected to take alone, and the arm on 64 CPUs."""
    base = catalog.resolve(RunConfig(**(settings | {"model": model})))
    plan = Plan(choices("six", {"train.lr": (1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3)}), "grid", 6, "auto", Limits())
    return base, Costs(plan, base, trial_data.prepare([base]), 64).choose()


def test_language_model_is_expected_to_take_what_its_parameters_and_tokens_do():
    model = {"kind": "gpt", "hidden": 96, "layers": 2}
    base, (arm, why) = outside(model, task="language", train={"epochs": 9, "max_steps": 575, "batch_size": 32})
    # 6 operations per parameter and token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1), without embeddings.
    parameters = 12 * 2 * 96**2 + 256 * 96
    products = parameters * base.text.context * 32
    work = 6 * 575 * (arm_costs.STEP_SECONDS + products * arm_costs.PRODUCT_SECONDS)
    seconds = float(why.split("one after another ")[1].split(" s")[0])
    assert seconds - arm_costs.START_SECONDS["sequential"] == pytest.approx(work, rel=0.2)
    assert arm == "ray"


def test_model_whose_operations_cannot_be_counted_has_no_expected_seconds(tmp_path):
    (tmp_path / "net.py").write_text(READS_VALUES)
    data = {"tickers": ("AAPL",), "start": "2017-01-01", "window": 4}
    arm, why = outside({"kind": f"{tmp_path}/net.py:Net"}, data=data)[1]
    assert arm == "packed"
    assert "cannot be counted" in why


RATES = choices("six", {"train.lr": (1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3)})
LANGUAGE = {"task": "language", "model": {"kind": "gpt", "hidden": 96}, "train": {"max_steps": 575, "batch_size": 32}}
IMAGES = {"task": "images", "model": {"kind": "cnn", "hidden": 64}, "train": {"batch_size": 64}}


@pytest.mark.parametrize(
    ("space", "settings", "alone", "cluster"),
    [
        (presets.grid18(), {}, 11, "packed"),
        (presets.grid108(), {}, 62, "ray"),
        (presets.lstm12(), {}, 150, "ray"),
        (RATES, LANGUAGE, 203, "ray"),
        (RATES, IMAGES, 23, "ray"),
    ],
    ids=["18 MLPs", "108 MLPs", "12 LSTMs", "6 GPTs", "6 CNNs"],
)
def test_auto_takes_the_arm_that_ends_first_by_seconds_near_the_measured_ones(space, settings, alone, cluster):
    """`alone`: seconds of all configs one after another on one core.

    MLPs as measured (docs/LOG.md); GPTs and CNNs from measured steps; LSTMs from those of two of the three widths.
    """
    base = catalog.resolve(RunConfig(**settings))
    plan = Plan(space, "grid", space.size, "auto", Limits())
    data = trial_data.prepare([base])
    here, there = (Costs(plan, base, data, cpus).choose() for cpus in (None, 64))
    assert (here[0], there[0]) == ("packed", cluster)
    seconds = float(here[1].split("one after another ")[1].split(" s")[0]) - arm_costs.START_SECONDS["sequential"]
    assert alone / 2 < seconds < alone * 2


def test_first_results_correct_what_is_expected_of_the_rest(made):
    plan = Plan(choices("seeds", SEEDS), "grid", 108, "auto", Limits())
    costs = Costs(plan, config(20), made, 64)
    trials = grid(config(20), plan.space)[:8]
    results = [
        TrialResult(id=one.id, overrides=one.overrides, status="ok", seconds=30.0, finished=None) for one in trials
    ]
    failed = results[0].model_copy(update={"status": "failed", "seconds": 0.0})
    factor = costs.compare([*results, failed])
    alone = float(costs.choose()[1].split("one after another ")[1].split(" s")[0])
    assert factor == pytest.approx(30 * 108 / (alone - arm_costs.START_SECONDS["sequential"]), rel=0.1)
    assert costs.choose()[0] == "packed"
    arm, why = costs.choose(results)
    left = float(why.split("one after another ")[1].split(" s")[0]) - arm_costs.START_SECONDS["sequential"]
    assert (arm, left) == ("ray", pytest.approx(30 * 100, rel=0.01))
    assert costs.compare([]) is None


class Takes(Arm[ConfigTrial]):
    """An arm whose trials take so many seconds each."""

    name, cores = "packed", 2

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self, collector: Collector[ConfigTrial]) -> None:
        while pack := collector.take():
            for one in pack:
                collector.add(TrialResult(id=one.id, overrides=one.overrides, status="ok", seconds=self.seconds))

    def build_failure(self, trial: ConfigTrial, reason: str) -> TrialResult:
        raise AssertionError(reason)


@pytest.mark.parametrize(("factor", "lines"), [(1.5, 0), (0.1, 1), (100, 1)])
def test_search_says_once_that_its_first_results_are_far_from_what_was_expected(made, tmp_path, capsys, factor, lines):
    base, plan = config(20), Plan(choices("seeds", SEEDS), "grid", 108, "auto", Limits())
    costs = Costs(plan, base, made, 64)
    seconds = sum(costs._seconds(trial, 1) for trial in grid(base, plan.space)) / 108
    with RunStore(tmp_path).open("s") as run:
        search_steps.run_trials(Takes(seconds * factor), base, run, plan, made, costs=costs)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == lines
    assert [line for line in printed if line.endswith("mode ray")] == printed * (factor > 1)
