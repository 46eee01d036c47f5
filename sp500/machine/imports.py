"""Import of large libraries at the start of a script, without garbage collection."""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's garbage collector from the objects of a block, which stay: during the block, and afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        gc.freeze()


def preload(*modules: str) -> None:
    """Import modules and all that they import. Does nothing if they are imported already.

    Torch, pandas and what they import make a million objects, which stay. Python's collector looks at all of them
    several times during the imports, again while the script works, and twice at its end: 0.8 of the 2.9 CPU seconds of
    a short training (docs/LOG.md). So it is off during the imports, leaves out afterwards what they made, and leaves
    out everything at the end of the process, when the system takes back the memory.
    """
    if all(name in sys.modules for name in modules):
        return
    with uncollected():
        for name in modules:
            importlib.import_module(name)
    atexit.register(gc.freeze)
