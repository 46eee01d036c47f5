"""A manager that is killed between the hand-over of a job and its mark in the ledger: `doomed_manager.py FOLDER N`.

It dies when its N-th job has been handed over, before it can write that down.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

from sp500 import cli
from sp500.jobs.local.executor import LocalExecutor
from sp500.jobs.manifests.manifest import Document

folder, last = sys.argv[1], int(sys.argv[2])
count, submit = itertools.count(1), LocalExecutor.submit


def submit_and_die(executor: LocalExecutor, handle: str, request: Document) -> None:
    submit(executor, handle, request)
    if next(count) == last:
        os.kill(os.getpid(), signal.SIGKILL)


LocalExecutor.submit = submit_and_die  # type: ignore[method-assign]
sys.exit(cli.main(["jobs", "manage", "--state-dir", folder, "--idle-seconds", "2"]))
