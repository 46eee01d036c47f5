"""What a search has tried, of models or of programs. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp500.errors import ConfigError
from sp500.formatting import some
from sp500.runs.record import RunRecord
from sp500.runs.results import SearchSummary
from sp500.runs.trials import Ledger, TrialResult
from sp500.tuning import stopper
from sp500.tuning.arm import Arm
from sp500.tuning.axes import Space
from sp500.tuning.space import key
from sp500.tuning.stopper import StopRule

if TYPE_CHECKING:
    from sp500.studies.program_search import ProgramPlan
    from sp500.tuning.limits import Plan


def open_ledger(folder: Path, data: str, space: Space) -> Ledger:
    """Return the ledger of a run's folder. Raises ConfigError for one of other data or of another space."""
    ledger = Ledger(folder, data)
    if not all(space.contains(result.overrides) for result in ledger.results.values()):
        raise ConfigError(f"{ledger.path} holds trials of another space than {space.name}; choose another --name")
    return ledger


@dataclass(frozen=True)
class Searched:
    """The outcome of the trials: their ledger, how many it held before, what they ran on, and seconds."""

    plan: Plan | ProgramPlan
    ledger: Ledger
    resumed: int
    arm: Arm[Any]
    seconds: float
    stop: StopRule | None

    def summarize(self, best: TrialResult, data: str) -> SearchSummary:
        """Return the facts of the search. `data`: hash of what the trials ran on."""
        results = self.ledger.results.values()
        summary: SearchSummary = {
            "space": self.plan.space.name,
            "method": self.plan.method,
            "key": key(self.ledger.results, data),
            "configs": len(results),
            "failed": sum(result.status != "ok" for result in results),
            "resumed": self.resumed,
            "rerun": self.ledger.rerun,
            "trial_seconds": sum(result.seconds for result in results),
            "cores": self.arm.cores,
            "best": best.choice,
            "by_dataset": [],
            "deflated_sharpe": None,
        }
        if self.stop:
            summary["stopped"] = stopper.count_stopped(result.stopped for result in results)
        return summary


def check_unchanged(record: RunRecord, space: str, plan: Callable[[], Plan | ProgramPlan]) -> None:
    """Raise ConfigError if the file `space` has changed since the search ended: its `plan` has others to try."""
    if record.search is None or not Path(space).expanduser().is_file():
        return
    planned, tried = plan(), record.search["configs"]
    if planned.trials != tried or not planned.space.contains(record.search["best"]["overrides"]):
        raise ConfigError(
            f"run {record.name!r} has ended with {some(tried, 'config')}, and space {space} with these settings has "
            f"{planned.trials}, or other values: --resume adds none to it; choose another --name"
        )
