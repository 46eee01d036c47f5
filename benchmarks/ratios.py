"""The command line of benchmarks that measure ratios within one run."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

Measure = Callable[[Path, Callable[[str], None]], dict[str, float]]
"""Measures all ratios in a folder, and reports each as it comes."""


def main(measure: Measure, description: str, arguments: Sequence[str]) -> int:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder of runs and shards (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        ratios = measure(flags.folder or Path(temporary), lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(ratios) if flags.json else "\n".join(f"{name} {value:.3f}" for name, value in ratios.items()))
    return 0
