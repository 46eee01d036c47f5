"""`sp500 jobs delete`: forget ended jobs."""

from __future__ import annotations

from collections.abc import Sequence

from sp500.commands.jobs import queue_flags
from sp500.jobs import client


class Delete(queue_flags.SomeJobs):
    """Delete ended jobs from the queue, with their logs and what their cluster keeps of them. Their runs stay."""

    force: bool = False
    """Forget also what has not ended or cannot be reached, and say what may be left there."""


def main(argv: Sequence[str]) -> int:
    """Delete the jobs and return the exit code."""
    return queue_flags.run_verb(Delete, argv, "jobs delete", _delete)


def _delete(flags: Delete) -> tuple[str, int]:
    left = client.open_queue(flags.state_dir).delete(flags.ids, force=flags.force)
    if flags.json_output:
        return queue_flags.dump_json({"deleted": list(flags.ids), "left": left}), 0
    return "\n".join([f"deleted: {', '.join(flags.ids)}", *left]), 0
