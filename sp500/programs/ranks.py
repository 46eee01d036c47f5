"""The ranks of a program that runs on several workers: their environment, and what each leaves in its folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from sp500.machine.cores import usable_cores
from sp500.machine.disk import append_durably, write_atomic
from sp500.programs.output import Measurement
from sp500.programs.program import End

MEASURED, ENDED = "measured.jsonl", "end.json"


@dataclass(frozen=True)
class Rank:
    """One process of a group."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    group_rank: int = 0
    """The number of its node."""


def build_environment(rank: Rank, host: str, port: int, run_id: str) -> dict[str, str]:
    """Return the variables that torchrun sets. `host` and `port` are those on which rank 0 listens."""
    variables = {
        "RANK": rank.rank,
        "WORLD_SIZE": rank.world_size,
        "LOCAL_RANK": rank.local_rank,
        "LOCAL_WORLD_SIZE": rank.local_world_size,
        "GROUP_RANK": rank.group_rank,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": run_id,
        # https://docs.pytorch.org/docs/stable/elastic/run.html: 1 if a node has several processes.
        "OMP_NUM_THREADS": 1 if rank.local_world_size > 1 else usable_cores(),
    }
    return {name: str(value) for name, value in variables.items()}


def read_given_threads() -> dict[str, str]:
    """Return OMP_NUM_THREADS if the user has set it, which counts more than any default."""
    return {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if os.environ.get(name)}


def rank_folder(run: Path, rank: int) -> Path:
    """Return the folder of a rank in that of its run: its log, its measurements and its end."""
    return run / "ranks" / str(rank)


def read_end(run: Path, rank: int) -> End | None:
    """Read how a rank ended; None if it left nothing, as one that was ended because of another."""
    try:
        fields = json.loads((rank_folder(run, rank) / ENDED).read_text())
    except FileNotFoundError:
        return None
    return End.from_fields(fields)


def write_event(folder: Path, event: Measurement | End) -> None:
    """Keep in a rank's folder what it measured, or how it ended."""
    text = json.dumps(asdict(event))
    if isinstance(event, End):
        write_atomic(folder / ENDED, text)
    else:
        append_durably(folder / MEASURED, text)


def read_measurements(run: Path, rank: int = 0) -> list[Measurement]:
    """Read what a rank measured, without a line that is still being written."""
    try:
        *lines, _ = (rank_folder(run, rank) / MEASURED).read_text().split("\n")
    except FileNotFoundError:
        return []
    return [Measurement(**json.loads(line)) for line in lines]
