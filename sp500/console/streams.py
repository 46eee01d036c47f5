"""Standard streams that the caller closed."""

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
