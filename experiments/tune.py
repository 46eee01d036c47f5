"""Hyper-parameter search: one config at a time, packs on this machine, packs under Ray Tune, or all three timed."""

from __future__ import annotations

import sys

from sp500.commands.experiments.tune import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="experiments/tune.py"))
