"""Datasets of growing size, three ways under one memory budget: what did streaming buy, and what did the cluster?"""

from __future__ import annotations

import sys

from sp500.commands.experiments.scale import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="experiments/scale.py"))
