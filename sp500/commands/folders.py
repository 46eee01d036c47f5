"""Folders that the environment names, or may."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def runs(environment: Mapping[str, str]) -> Path:
    """Where runs lie unless a flag says otherwise: $SP500_RUNS_DIR, or `runs` here."""
    return Path(environment.get("SP500_RUNS_DIR") or "runs")


def default_runs() -> Path:
    """Where this process has them."""
    return runs(os.environ)
