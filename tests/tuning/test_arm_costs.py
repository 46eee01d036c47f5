"""Mode auto: the arm that should end first, for small and large searches, here and on a cluster."""

from dataclasses import replace

import pytest

from sp500.config import RunConfig, TrainConfig
from sp500.tasks import catalog
from sp500.tasks.settings import SyntheticConfig
from sp500.tuning import arm_costs, trial_data
from sp500.tuning.axes import choices
from sp500.tuning.limits import Limits, Plan

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
    return arm_costs.choose(plan, config(epochs), made, cluster_cpus)


@pytest.mark.parametrize(
    ("epochs", "cpus", "arm"),
    [(1, None, "packed"), (2000, None, "packed"), (1, 64, "packed"), (2000, 64, "ray"), (2000, 2, "packed")],
)
def test_ray_is_chosen_only_where_its_cores_make_up_for_its_start(made, epochs, cpus, arm):
    assert chosen(epochs, made, cpus)[0] == arm


def test_reason_names_the_expected_seconds_of_every_arm(made):
    why = chosen(2000, made, 64)[1]
    assert why.startswith("mode ray: expected for 108 configs are one after another ")
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
    many, some = (arm_costs.choose(one, config(100), made)[1] for one in (plan, few))
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
    return base, arm_costs.choose(plan, base, trial_data.prepare([base]), 64)


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
