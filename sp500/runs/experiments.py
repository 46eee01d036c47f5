"""The experiments that leave runs: their names, and what is asked of each.

Those of a program of the user's have no task and no model in their records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

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
