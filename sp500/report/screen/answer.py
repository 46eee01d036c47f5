"""An answer of the first screen, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sp500.report.models.results import Group
from sp500.report.plot_style import Figure
from sp500.report.programs import ProgramRuns
from sp500.report.scale.results import Scale
from sp500.report.search.results import Search
from sp500.report.section import Runs
from sp500.runs.record import RunRecord

FITS, FASTER, COSTS, SAME, GOOD, HOLDS = (
    "Does it fit?",
    "Is it faster?",
    "What does it cost?",
    "Is it the same?",
    "Is the model any good?",
    "Does it hold year after year?",
)
COMMANDS: Mapping[str, tuple[str, str]] = {
    FITS: ("scale", "--multipliers 10 50"),
    FASTER: ("tune", "--mode all --space grid18"),
    COSTS: ("compare", "--rates RATES.yaml"),
    SAME: ("train", "--num-workers 2"),
    GOOD: ("train", ""),
    HOLDS: ("walk-forward", ""),
}
"""The experiment that answers a question, and its flags, if no run does."""


def name_size(multiplier: int) -> str:
    """Return a size of the data in words: '50 times the data'."""
    return "the data as it is" if multiplier == 1 else f"{multiplier:,} times the data"


@dataclass(frozen=True)
class Answer:
    """One question, the number that answers it, and the sentence that says what the number is."""

    question: str
    number: str
    caption: str
    section: str
    """Name of the section that has the rest."""
    chart: Figure | None = None


@dataclass(frozen=True)
class Facts:
    """What the sections found, as the first screen needs it."""

    runs: Runs
    groups: Sequence[Group]
    search: Search
    programs: Sequence[ProgramRuns]
    folds: RunRecord | None
    scale: Scale
