"""Waits for what a script that runs has written."""

import subprocess
import time
from pathlib import Path

from forks import Script


def until_lines(process: subprocess.Popen | Script, path: Path, number: int) -> None:
    """Wait until a file has that many lines, while the script that writes it runs."""
    deadline = time.monotonic() + 240
    while not (path.exists() and path.read_text().count("\n") >= number):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until_epoch(process: subprocess.Popen | Script, run: Path, number: int) -> None:
    """Wait until a run has done that many epochs."""
    until_lines(process, run / "epochs.jsonl", number)
