"""One config re-trained over the years on the dates before, each year judged next to naive forecasts."""

from __future__ import annotations

import sys

from sp500.commands.experiments.walk_forward import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="experiments/walk_forward.py"))
