"""All programs that kill or flood what runs and count what was lost (exit code 1 then); see `scripts/chaos --help`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import flood_server
import kill_archive
import kill_managers
import kill_searches
import kill_training
import sabotage

PROGRAMS = ("managers", "searches", "training", "steps", "archive", "serving")
Figures = dict[str, object]


def managers(folder: Path, seed: int, *, quick: bool) -> tuple[Figures, bool]:
    found = kill_managers.measured(*((40, 3, 3) if quick else (1000, 25, 10)), seed, folder)
    return found, not kill_managers.wrong(found)


def searches(folder: Path, seed: int, *, quick: bool) -> tuple[Figures, bool]:
    found, trials = [], 36 if quick else 108
    for mode in ("sequential", "packed", "ray"):
        (folder / mode).mkdir()
        found.append(kill_searches.measured(mode, 1 if quick else 10, trials, seed, folder / mode))
    good = not any(kill_searches.wrong(one, trials) for one in found)
    return {str(one.pop("mode")): one for one in found}, good


def training(folder: Path, seed: int, *, quick: bool) -> tuple[Figures, bool]:
    found = kill_training.measured(1 if quick else 10, seed, folder)
    return found, not kill_training.wrong(found)


def steps(folder: Path, seed: int, *, quick: bool) -> tuple[Figures, bool]:
    found = kill_training.measured_steps(2 if quick else 10, seed, folder)
    return found, not kill_training.wrong_steps(found)


def archive(folder: Path, seed: int, *, quick: bool) -> tuple[Figures, bool]:
    found = kill_archive.measured(2 if quick else 20, seed, folder)
    return found, not kill_archive.wrong(found)


def serving(folder: Path, seed: int, *, quick: bool) -> tuple[Figures, bool]:
    found = flood_server.measured(*((3.0, 200_000) if quick else (30.0, 1_000_000)), seed, folder)
    slowest = flood_server.MOST_SECONDS_BUSY if quick else flood_server.MOST_SECONDS
    return found, not flood_server.wrong(found, slowest)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="Kill or flood what runs, and count what was lost."
    )
    parser.add_argument("programs", nargs="*", help=f"{', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few kills of each kind")
    parser.add_argument("--sabotage", action="store_true", help="of copies with a fault, which has to be found")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    flags = parser.parse_args()
    if unknown := set(flags.programs) - set(PROGRAMS):
        parser.error(f"unknown program {', '.join(sorted(unknown))}; known are {', '.join(PROGRAMS)}")
    run: dict[str, Callable[..., tuple[Figures, bool]]] = {
        "managers": managers, "searches": searches, "training": training, "steps": steps, "archive": archive,
        "serving": serving,
    }  # fmt: skip
    found, good = {}, True
    for name in flags.programs or PROGRAMS:
        with tempfile.TemporaryDirectory(prefix="sp500-chaos-") as folder:
            if flags.sabotage:
                found[name] = sabotage.measured(name, flags.seed, Path(folder))
                fine = bool(found[name]["caught"])
            else:
                found[name], fine = run[name](Path(folder), flags.seed, quick=flags.quick)
        good = good and fine
    lines = [f"{name}: {key} {value}" for name, figures in found.items() for key, value in figures.items()]
    print(json.dumps(found) if flags.json else "\n".join(lines))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
