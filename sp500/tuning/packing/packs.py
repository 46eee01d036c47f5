"""Which configs train together, in which order, and what happens when a pack fails."""

from __future__ import annotations

import faulthandler
import json
import time
from collections.abc import Iterator, Sequence

from sp500.config import LATER_KEYS, RunConfig, TrainConfig
from sp500.runs.trials import TrialResult
from sp500.tuning.limits import Limits, PackSize, deadline
from sp500.tuning.sequential import run_trial
from sp500.tuning.space import Trial
from sp500.tuning.suggest import Suggester
from sp500.tuning.trial_data import TrialData

# Settings that are values, not shapes: members of a pack may differ in them.
FREE = {
    "train": {"lr", "weight_decay", "clip", "seed", "epochs", "early_stop_patience"},
    "model": {"dropout"},
}
# A larger pack takes less time per member, until a layer's activations outgrow a core's cache; and what is left at the
# end is spread over cores better when packs are small. Width 128, batch 256: 3 members take 1.2 ms each per step, 6
# take 1.04, 9 take 0.96, 18 take 0.95; width 32: 3 take 0.4, 9 take 0.26, 18 take 0.23.
CACHE_BYTES = 1_200_000
MOST = 18
# A call into C that does not return is ended with its process this long after its deadline.
GRACE_SECONDS = 10


class PackQueue:
    """The suggester's trials in packs for `slots` processes. Trials are asked for `at_once` at a time."""

    def __init__(self, suggester: Suggester, size: PackSize, at_once: int, slots: int) -> None:
        self._suggester, self._size, self._at_once, self._slots = suggester, size, at_once, slots
        self._packs: list[list[Trial]] = []
        self.waiting: set[str] = set()
        """Ids of configs that were taken and have no result yet."""

    def take(self) -> list[Trial]:
        """The next pack; empty when all were taken. One that is running may still come back."""
        if not self._packs:
            self._packs = packs(self._suggester.ask(self._at_once), self._size, self._slots)
        pack = self._packs.pop(0) if self._packs else []
        self.waiting |= {trial.id for trial in pack}
        return pack

    def retry(self, pack: Sequence[Trial]) -> list[Trial]:
        """Handle a pack whose process died: its unfinished trials run again one by one.

        Returns those that cannot: a trial that was alone in its pack is itself at fault.
        """
        left = [trial for trial in pack if trial.id in self.waiting]
        if len(pack) == 1:
            return left
        self._packs += [[trial] for trial in left]
        return []


def packs(trials: Sequence[Trial], size: PackSize, slots: int = 1) -> list[list[Trial]]:
    """Trials in packs for so many processes, the longest work first, so that what is left at the end is short."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        shape = _shape(trial.config) if size != "off" and packable(trial.config) else trial.id
        groups.setdefault(shape, []).append(trial)
    pieces = []
    for alike in groups.values():
        # Neighbours draw the same dropout masks, and draw them once.
        ordered = sorted(alike, key=lambda trial: (trial.config.train.seed, trial.config.model.dropout_rate))
        most = size if isinstance(size, int) else min(best_size(alike[0].config), -(-len(trials) // slots))
        count = -(-len(ordered) // most)
        even = -(-len(ordered) // count)
        pieces += [ordered[first : first + even] for first in range(0, len(ordered), even)]
    return sorted(pieces, key=_work, reverse=True)


def packable(config: RunConfig) -> bool:
    """Whether configs of this kind can train as one model."""
    plain = all(getattr(config.train, key) == TrainConfig.model_fields[key].default for key in LATER_KEYS)
    return plain and config.model.packs and config.task_kind.packs


def best_size(config: RunConfig) -> int:
    """Members of a pack, from a table of measurements."""
    width = int(str(config.model.used.get("hidden", 1)))
    bytes_each = config.batch_size * width * (8 if config.train.dtype == "float64" else 4)
    return max(4, min(MOST, CACHE_BYTES // bytes_each))


def run_with_watchdog(data: TrialData | str, trials: Sequence[Trial], limits: Limits) -> Iterator[list[TrialResult]]:
    """`run` in a process of its own. A call into C that does not return long after the deadline ends the process."""
    results, left = run(data, trials, limits.timeout, limits.halving), len(trials)
    while left:
        if limits.timeout:
            faulthandler.dump_traceback_later(2 * limits.timeout * left + GRACE_SECONDS, exit=True)
        finished = next(results)
        if limits.timeout:  # after a fork, this waits for ever for a thread that a parent had started
            faulthandler.cancel_dump_traceback_later()
        left -= len(finished)
        yield finished


def run(
    data: TrialData | str, trials: Sequence[Trial], timeout: float | None = None, halving: int = 0
) -> Iterator[list[TrialResult]]:
    """Results of one pack, as they come. A pack that fails as a whole is tried again one by one."""
    left = {trial.id: trial for trial in trials}
    if isinstance(data, TrialData) and len(left) > 1:
        for results in _together(data, trials, timeout, halving):
            for result in results:
                del left[result.id]
            yield results
    for trial in left.values():
        yield [run_trial(data, trial, timeout)]


def _together(
    data: TrialData, trials: Sequence[Trial], timeout: float | None, halving: int
) -> Iterator[list[TrialResult]]:
    """Results of the pack until an error. Which trial is at fault shows when each trains alone."""
    from sp500.tuning.packing.training import Pack

    remaining = timeout and timeout * len(trials)
    try:
        with deadline(remaining):
            coming = Pack(data, trials, timeout, halving).run()
        while True:
            started = time.perf_counter()
            # Not around the yield: time that the caller takes is not the pack's.
            with deadline(remaining):
                results = next(coming, None)
            if results is None:
                return
            remaining = remaining and max(remaining - (time.perf_counter() - started), 0.01)
            yield results
    except Exception:  # noqa: BLE001 - which trial is at fault shows when each trains alone
        return


def _shape(config: RunConfig) -> str:
    """What members must share."""
    return json.dumps(config.model_dump(mode="json", exclude={"io": True, "eval": True, **FREE}), sort_keys=True)


def _work(pack: Sequence[Trial]) -> float:
    """Relative time that a pack takes."""
    model = pack[0].config.model
    slower = 1 if model.packs else 30
    return sum(trial.config.train.epochs for trial in pack) * slower * model.work
