"""The arm of a search that should end first: start-up and work of each, from measurements on two cores.

The constants are those of docs/LOG.md and good to about a factor of two, for the small networks by a formula, for all
others by counting the operations of the model itself. That is enough here, since the arms differ by
more than that where it matters: Ray costs seconds to start and gains nothing without cores that this machine lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from functools import cached_property
from statistics import fmean

from sp500.config import RunConfig
from sp500.formatting import some
from sp500.runs.trials import TrialResult
from sp500.training.throughput import count_cost
from sp500.tuning import trial_data
from sp500.tuning.limits import ArmName, PackSize, Plan
from sp500.tuning.packing import scheduler
from sp500.tuning.packing.scheduler import count_processes
from sp500.tuning.space import ConfigTrial, candidates, trial
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


class Costs:
    """The expected seconds of a search's configs, alone and in packs, and of all of them by arm.

    `cluster_cpus`: of the cluster that this process runs in; None: Ray would have the cores of this machine.
    """

    def __init__(self, plan: Plan, config: RunConfig, datasets: Datasets, cluster_cpus: int | None = None) -> None:
        self._plan, self._config, self._datasets = plan, config, datasets
        local = count_processes(config)
        self._slots = {"sequential": 1, "packed": local, "ray": local if cluster_cpus is None else cluster_cpus}
        if plan.limits.halving:
            del self._slots["sequential"]
        self._counted: dict[str, float] = {}
        self._trials, self._times = draw_sample(plan, config)

    @cached_property
    def _known(self) -> bool:
        """True if the operations of all models can be counted."""
        return all(self._products(trial) for trial in self._trials)

    def choose(self, results: Collection[TrialResult] = ()) -> tuple[ArmName, str]:
        """Return the arm that should end first, and the reason. Of two that take as long, the simpler one.

        `results` of the search so far correct what is expected of the rest.
        """
        if self._plan.limits.workers:
            return "ray", "each trial is a run of Ray Train"
        if not self._known:
            return "packed", "the operations of these models cannot be counted, so no seconds are expected"
        total = round(len(self._trials) * self._times)
        factor = self.compare(results) or 1.0
        expected = self._expect(factor, max(1 - len(results) / total, 0.0))
        best = min(expected, key=lambda arm: round(expected[arm], 1))
        cores = {arm: some(count, "core") for arm, count in self._slots.items()}
        listing = ", ".join(f"{NAMES[arm]} {seconds:.0f} s on {cores[arm]}" for arm, seconds in expected.items())
        configs = some(total, "config")
        if results:
            configs = (
                f"{some(total - len(results), 'config')} not run yet ({len(results)} took {factor:.1f} times as long)"
            )
        return best, f"expected for {configs} are {listing}"

    def compare(self, results: Iterable[TrialResult]) -> float | None:
        """Return the seconds that these results took over those that were expected; None without any of both."""
        ended = [result for result in results if result.status == "ok"]
        trials = [(trial(self._config, result.overrides), result.pack) for result in ended]
        expected = sum(itertools.starmap(self._seconds, trials)) if self._known else 0.0
        return sum(result.seconds for result in ended) / expected if expected else None

    def _expect(self, factor: float, left: float) -> dict[ArmName, float]:
        """Return the seconds of each arm for the part of the work that is left, if all takes `factor` times as long."""
        expected: dict[ArmName, float] = {}
        for arm, start in START_SECONDS.items():
            if not self._slots.get(arm):
                continue
            size: PackSize = "off" if arm == "sequential" else self._plan.limits.pack
            packs = scheduler.split_into_packs(self._trials, size, self._plan.limits.spread(self._slots[arm]))
            work = [factor * sum(self._seconds(trial, len(pack)) for trial in pack) for pack in packs]
            # A pack does not split: the longest one is the least that they take side by side.
            expected[arm] = start + max(left * sum(work) * self._times / self._slots[arm], *work)
        return expected

    def _seconds(self, trial: ConfigTrial, pack: int) -> float:
        """Return the seconds of one config's training in a pack of `pack` configs. 0 if its data cannot be prepared."""
        config, data = trial.config, self._datasets.get(trial_data.key(trial.config), "")
        if isinstance(data, str):
            return 0.0
        windows = len(data.dataset.train)
        steps = config.train.epochs * -(-windows // config.batch_size)
        return min(steps, config.train.max_steps or steps) * (
            STEP_SECONDS / pack + min(config.batch_size, windows) * self._products(trial) * PRODUCT_SECONDS
        )

    def _products(self, trial: ConfigTrial) -> float:
        """Return about how many multiplications a window takes going forward; 0 if that cannot be known.

        Models that have no formula are counted, a tenth of a second each: of many the first ones represent all.
        """
        data = self._datasets.get(trial_data.key(trial.config), "")
        if isinstance(data, str):
            return 1.0  # of no steps
        by_formula = trial.config.model.count_products(data.dataset.train.length, data.dataset.features)
        if by_formula is not None and trial.config.task_kind.packs:
            return by_formula
        shape = trial.config.model.model_dump_json(exclude={"dropout"})
        if shape not in self._counted and len(self._counted) < MOST_COUNTED:
            cost = count_cost(data.task, trial.config, data.dataset)
            self._counted[shape] = cost.flops_per_window / FLOPS_OF_PRODUCT if cost else 0.0
        return self._counted[shape] if shape in self._counted else fmean(self._counted.values())


def draw_sample(plan: Plan, config: RunConfig) -> tuple[list[ConfigTrial], float]:
    """Draw a sample of the configs that the search will try, and the number of configs per config of the sample."""
    method = "grid" if plan.method == "grid" else "random"
    suggester = load_method(method)(candidates(config, plan.space), plan.trials, config.train.seed)
    trials = suggester.ask(min(plan.trials, SAMPLE))
    return trials, plan.trials / len(trials)
