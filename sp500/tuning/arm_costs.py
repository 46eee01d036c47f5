"""The arm of a search that should end first: start-up and work of each, from measurements on two cores.

The constants are those of docs/LOG.md and good to about a factor of two, for the small networks by a formula, for all
others by counting the operations of the model itself. That is enough here, since the arms differ by
more than that where it matters: Ray costs seconds to start and gains nothing without cores that this machine lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from sp500.config import RunConfig
from sp500.training.throughput import count_cost
from sp500.tuning import trial_data
from sp500.tuning.limits import ArmName, PackSize, Plan
from sp500.tuning.packing import scheduler
from sp500.tuning.packing.scheduler import count_processes
from sp500.tuning.space import ConfigTrial, candidates
from sp500.tuning.suggest import load_method
from sp500.tuning.trial_data import Datasets

# From the start of the process to its exit, without the trials: imports, data, the chosen config's training. Ray adds
# its own processes, and actors that import torch.
START_SECONDS: dict[ArmName, float] = {"sequential": 4.0, "packed": 4.0, "ray": 10.0}
# Of a training step: what a pack pays once and a config alone each time, and a multiplication and addition of a window
# with its gradient.
STEP_SECONDS, PRODUCT_SECONDS = 0.5e-3, 22e-9 / 256
# Multiplications and additions of a product with its gradient.
FLOPS_OF_PRODUCT = 6
MOST_COUNTED = 16
# Size of the sample that represents a larger search.
SAMPLE = 500
NAMES: dict[ArmName, str] = {"sequential": "one after another", "packed": "packed without Ray", "ray": "with Ray Tune"}


def choose(plan: Plan, config: RunConfig, datasets: Datasets, cluster_cpus: int | None = None) -> tuple[ArmName, str]:
    """Return the arm that should end first, and a line that says why. Of two that take as long, the simpler one.

    `cluster_cpus`: of the cluster that this process runs in; None: Ray would have the cores of this machine.
    """
    if plan.limits.workers:
        return "ray", "mode ray: each trial is a run of Ray Train"
    local = count_processes(config)
    slots = {"sequential": 1, "packed": local, "ray": local if cluster_cpus is None else cluster_cpus}
    if plan.limits.halving:
        del slots["sequential"]
    trials, times = sample(plan, config)
    if not (products := _count_products(trials, datasets)):
        return "packed", "mode packed: the operations of these models cannot be counted, so no seconds are expected"
    expected: dict[ArmName, float] = {}
    for arm, start in START_SECONDS.items():
        if not slots.get(arm):
            continue
        size: PackSize = "off" if arm == "sequential" else plan.limits.pack
        together = scheduler.split_into_packs(trials, size, plan.limits.spread(slots[arm]))
        work = [sum(_seconds(trial, products, datasets, len(pack)) for trial in pack) for pack in together]
        # A pack does not split: the longest one is the least that they take side by side.
        expected[arm] = start + max(sum(work) * times / slots[arm], *work)
    best = min(expected, key=lambda arm: round(expected[arm], 1))
    cores = {arm: f"{count} core{'' if count == 1 else 's'}" for arm, count in slots.items()}
    listing = ", ".join(f"{NAMES[arm]} {seconds:.0f} s on {cores[arm]}" for arm, seconds in expected.items())
    return best, f"mode {best}: expected for {round(len(trials) * times)} configs are {listing}"


def sample(plan: Plan, config: RunConfig) -> tuple[list[ConfigTrial], float]:
    """Draw a sample of the configs that the search will try, and the number of configs per config of the sample."""
    method = "grid" if plan.method == "grid" else "random"
    drawn = load_method(method)(candidates(config, plan.space), plan.trials, config.train.seed)
    trials = drawn.ask(min(drawn.total, SAMPLE))
    return trials, drawn.total / len(trials)


def _seconds(trial: ConfigTrial, products: Mapping[str, float], datasets: Datasets, pack: int) -> float:
    """Return the seconds of one config's training in a pack of `pack` configs. 0 if its data cannot be prepared."""
    config, data = trial.config, datasets[trial_data.key(trial.config)]
    if isinstance(data, str):
        return 0.0
    windows = len(data.dataset.train)
    steps = config.train.epochs * -(-windows // config.batch_size)
    return min(steps, config.train.max_steps or steps) * (
        STEP_SECONDS / pack + min(config.batch_size, windows) * products[trial.id] * PRODUCT_SECONDS
    )


def _count_products(trials: Sequence[ConfigTrial], datasets: Datasets) -> dict[str, float]:
    """Return about how many multiplications a window takes going forward, by trial; empty if that cannot be known.

    Models that have no formula are counted, a tenth of a second each: of many the first ones represent all.
    """
    counted: dict[str, float] = {}
    products: dict[str, float] = {}
    for trial in trials:
        data, shape = datasets[trial_data.key(trial.config)], trial.config.model.model_dump_json(exclude={"dropout"})
        if isinstance(data, str):
            continue
        by_formula = trial.config.model.count_products(data.dataset.train.length, data.dataset.features)
        if by_formula is not None and trial.config.task_kind.packs:
            products[trial.id] = by_formula
            continue
        if shape not in counted and len(counted) < MOST_COUNTED:
            cost = count_cost(data.task, trial.config, data.dataset)
            if cost is None or not cost.flops_per_window:
                return {}
            counted[shape] = cost.flops_per_window / FLOPS_OF_PRODUCT
        products[trial.id] = counted.get(shape) or fmean(counted.values())
    return products
