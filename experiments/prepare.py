"""Prices, validated: a data card (rows, dates, repairs), a summary of the feature table, or shards."""

from __future__ import annotations

import sys

from sp500.commands.experiments.prepare import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="experiments/prepare.py"))
