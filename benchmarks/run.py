"""Compare the project with its peers: searches, starts, training with two workers, serving.

python benchmarks/run.py search               # 5 turns on a quiet machine; kept in benchmarks/results
python benchmarks/run.py start --quick --json # one turn of less work, not kept: does it run?
python benchmarks/run.py page                 # docs/benchmarks.md from what is kept
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import page
from benchmarks.turns import ROOT, Part, run_turns

PARTS = ("search", "start", "train", "serve")
RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("torch", "numpy", "pandas", "ray", "optuna", "scikit-learn", "fastapi", "uvicorn")


def main(arguments: list[str]) -> int:
    """Measure one part, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "page"])
    parser.add_argument("--turns", type=int, help="turns of all programs (default: 5; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="less work, and nothing is kept")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="programs with this in their name, and the reference"
    )
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="checkout of another commit, measured in turns too"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--results", type=Path, help=f"folder of kept results (default: {RESULTS.name}, of whole runs only)"
    )
    flags = parser.parse_args(arguments)
    folder = flags.results or RESULTS
    if flags.part == "page":
        results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        (ROOT / "docs" / "benchmarks.md").write_text(page.write(results))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends servers as well
    result = measure(flags)
    if flags.results or not (flags.quick or flags.only):
        folder.mkdir(exist_ok=True)
        (folder / f"{flags.part}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1) if flags.json else page.section(result))
    return 0


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the result of one part as plain data."""
    # Ray's sockets have at most 107 characters, of which the folder is a part.
    with tempfile.TemporaryDirectory(prefix="b-") as name:
        part, load = _plan(flags, Path(name)), os.getloadavg()[0]
        turns = flags.turns or (1 if flags.quick else 5)
        tables = run_turns(part, turns, Path(name), lambda line: print(line, file=sys.stderr, flush=True))
    return {
        "part": flags.part,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "turns": turns,
        "quick": flags.quick,
        "only": flags.only,
        "load": [load, os.getloadavg()[0]],
        "machine": _describe_machine(),
        "versions": {"Python": platform.python_version()} | {name: metadata.version(name) for name in LIBRARIES},
        "tables": tables,
    }


def _plan(flags: argparse.Namespace, base: Path) -> Part:
    from benchmarks import arms, serving

    trees = {"tune.py": ROOT} | ({"before: tune.py": flags.before.absolute()} if flags.before else {})
    if flags.part == "serve":
        part = serving.serve(base, quick=flags.quick)
    else:
        part = {"search": arms.search, "start": arms.start, "train": arms.train}[flags.part](
            base, trees, quick=flags.quick
        )
    references = {table.reference for table in part.tables}
    chosen = [arm for arm in part.arms if arm.name in references or any(text in arm.name for text in flags.only)]
    return Part(chosen if flags.only else part.arms, part.tables)


def _describe_machine() -> dict[str, Any]:
    from sp500.machine.cores import usable_cores
    from sp500.machine.memory import total_bytes

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processors = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpus": usable_cores(),
        "processor": processors[0] if processors else platform.machine(),
        "memory_gib": round(total_bytes() / 2**30),
        "system": platform.platform(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
