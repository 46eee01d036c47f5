"""What a search that has ended tried, against what its settings would try now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sp500.errors import ConfigError
from sp500.formatting import some
from sp500.runs.record import RunRecord

if TYPE_CHECKING:
    from sp500.studies.program_search import ProgramPlan
    from sp500.tuning.limits import Plan


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
