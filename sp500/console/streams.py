"""Standard streams that the caller closed, and a stdout that cannot be written."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Open /dev/null for what the caller closed of stdin, stdout and stderr.

    Else the next file would get the number, and what libraries print; and Python prints for stderr on stdout.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(null, True)
    os.close(null)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def write_stdout(text: str = "") -> int:
    """Print a text after what is buffered, and return the exit code.

    0 also if the reader (head, less) has seen enough; 1, with a message, if the disk under stdout is full.
    """
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still buffered
        if not isinstance(error, BrokenPipeError):
            print(f"stdout cannot be written: {error.strerror}", file=sys.stderr)
            return 1
    return 0
