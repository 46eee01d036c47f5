"""Which configs train together, how many at a time, and what happens when that fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

from sp500.config import RunConfig
from sp500.tuning.ledger import TrialResult
from sp500.tuning.limits import PackSize, deadline
from sp500.tuning.material import Material
from sp500.tuning.sequential import run_trial
from sp500.tuning.space import Trial

# Families that gain, measured (docs/LOG.md); an LSTM of batched products takes four times as long as torch's own.
FAMILIES = {"linear", "mlp"}
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


def packs(trials: Sequence[Trial], size: PackSize, slots: int = 1) -> list[list[Trial]]:
    """Trials in packs for so many processes, the longest work first, so that what is left at the end is short."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        shape = trial.id if size == "off" or trial.config.model.kind not in FAMILIES else _shape(trial.config)
        groups.setdefault(shape, []).append(trial)
    found = []
    for alike in groups.values():
        # Neighbours draw the same dropout masks, and draw them once.
        ordered = sorted(alike, key=lambda trial: (trial.config.train.seed, trial.config.model.dropout))
        most = size if isinstance(size, int) else min(best_size(alike[0].config), -(-len(trials) // slots))
        count = -(-len(ordered) // most)
        even = -(-len(ordered) // count)
        found += [ordered[first : first + even] for first in range(0, len(ordered), even)]
    return sorted(found, key=_work, reverse=True)


def best_size(config: RunConfig) -> int:
    """Members of a pack, from a table of measurements."""
    width = config.model.hidden if config.model.kind == "mlp" else 1
    bytes_each = config.batch_size * width * (8 if config.train.dtype == "float64" else 4)
    return max(4, min(MOST, CACHE_BYTES // bytes_each))


def run(
    made: Material | str, trials: Sequence[Trial], timeout: float | None = None, halving: int = 0
) -> Iterator[list[TrialResult]]:
    """Results of one pack, as they come. A pack that fails as a whole is tried again one by one."""
    left = {trial.id: trial for trial in trials}
    if isinstance(made, Material) and len(left) > 1:
        for results in _together(made, trials, timeout, halving):
            for result in results:
                del left[result.id]
            yield results
    for trial in left.values():
        yield [run_trial(made, trial, timeout)]


def _together(
    made: Material, trials: Sequence[Trial], timeout: float | None, halving: int
) -> Iterator[list[TrialResult]]:
    """Results of the pack for as long as it goes well; whose fault it was shows when each trains alone."""
    from sp500.tuning.packed import Pack

    remaining = timeout and timeout * len(trials)
    try:
        with deadline(remaining):
            coming = Pack(made, trials, timeout, halving).run()
        while True:
            started = time.perf_counter()
            # Not around the yield: time that the caller takes is not the pack's.
            with deadline(remaining):
                results = next(coming, None)
            if results is None:
                return
            remaining = remaining and max(remaining - (time.perf_counter() - started), 0.01)
            yield results
    except Exception:  # noqa: BLE001 - whose fault it was shows when each trains alone
        return


def _shape(config: RunConfig) -> str:
    """What members must share."""
    return json.dumps(config.model_dump(mode="json", exclude={"io": True, "eval": True, **FREE}), sort_keys=True)


def _work(pack: Sequence[Trial]) -> float:
    """About how long a pack takes, in no unit."""
    model = pack[0].config.model
    recurrent = 30 if model.kind in {"lstm", "transformer"} else 1
    return sum(trial.config.train.epochs for trial in pack) * recurrent * model.hidden * model.layers
