"""The experiments that leave runs: their names, and what is asked of each.

Those of a program of the user's have no task and no model in their records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import Field

from sp500.config import Frozen

Experiment = Literal["scale", "train", "tune", "walk_forward"]
EXPERIMENTS: tuple[Experiment, ...] = get_args(Experiment)
TITLES: Mapping[Experiment, str] = {
    "scale": "Scale",
    "train": "Training",
    "tune": "Search",
    "walk_forward": "Walk forward",
}
DISTRIBUTED: frozenset[Experiment] = frozenset({"train", "walk_forward", "scale"})
"""Those with --num-workers for their training. A search has one worker per trial by default."""
JUDGED = frozenset({"train", "tune", "judge"})
"""Those whose run is one model with test metrics, and forecasts made elsewhere."""
PROGRAM, PROGRAM_SEARCH = "program", "program_search"
"""A program of the user's, and a search of its arguments."""
SEARCHES = frozenset({"tune", PROGRAM_SEARCH})
"""Those that run many configs."""


class Question(Frozen):
    """What more workers would buy, by the runs that have ended."""

    experiment: Experiment = "scale"
    """Whose runs to go by. Of tune, the workers are the cores that its trials run on."""
    workers: tuple[Annotated[int, Field(gt=0)], ...] = Field((1, 2, 4, 8, 16), min_length=1)
    """Numbers of workers."""
    size: int | None = Field(None, gt=0)
    """Windows to train on, over all epochs. Default: as many as the newest run."""
    node_type: str = ""
    """Price a worker as a node of this type of the table. Default: as the runs' own machines."""
    spot: bool = False
    """Price workers as spot machines."""
