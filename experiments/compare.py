"""Read the run records and write the report: one page, Markdown, and JSON."""

from __future__ import annotations

import sys

from sp500.commands.experiments.compare import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="experiments/compare.py"))
