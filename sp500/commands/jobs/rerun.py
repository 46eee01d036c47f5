"""`sp500 jobs rerun`: the same job once more, under a new id."""

from __future__ import annotations

from collections.abc import Sequence

from sp500.commands.jobs import queue_flags
from sp500.jobs import client


class Rerun(queue_flags.OneJob):
    """Queue a job again, as it was: command, settings, folder, environment and place."""


def main(argv: Sequence[str]) -> int:
    """Queue the job and return the exit code."""
    return queue_flags.run_verb(Rerun, argv, "jobs rerun", _rerun)


def _rerun(flags: Rerun) -> tuple[str, int]:
    again = client.rerun(client.open_queue(flags.state_dir), flags.id)
    if flags.json_output:
        return queue_flags.dump_json(queue_flags.plain(again)), 0
    return f"{again.id} is queued; follow it: sp500 jobs logs {again.id} --follow", 0
