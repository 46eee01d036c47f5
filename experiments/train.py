"""Train one model, in this process (--num-workers 0) or on Ray with N workers, and judge it next to naive forecasts."""

from __future__ import annotations

import sys

from sp500.commands.experiments.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="experiments/train.py"))
