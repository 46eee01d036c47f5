"""Folders that the environment names, or may."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def runs(environment: Mapping[str, str]) -> Path:
    """Return the default folder of runs: $SP500_RUNS_DIR, or `runs` in the current folder."""
    return Path(environment.get("SP500_RUNS_DIR") or "runs")


def default_runs() -> Path:
    """Return the default folder of runs for this process."""
    return runs(os.environ)
