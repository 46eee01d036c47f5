"""A program that is killed at a line of its own: `doomed.py before|after MODULE:NAME[?TEXT] N PROGRAM [FLAG ...]`.

SIGKILL comes right before or after the N-th call of NAME, such as `LocalExecutor.submit`, of those with an argument
that ends with TEXT. PROGRAM is a file or a module.
"""

from __future__ import annotations

import importlib
import itertools
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any


def killed(
    when: str, place: str, number: int, argv: Sequence[str], environment: Mapping[str, str] | None = None
) -> bool:
    """Run a program until that call. Returns whether it got there."""
    script = [sys.executable, __file__, when, place, str(number), *argv]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(script, **quiet, env=environment, check=False, timeout=240).returncode == -signal.SIGKILL


def main() -> None:
    when, place, number, program, *flags = sys.argv[1:]
    place, _, text = place.partition("?")
    module, _, path = place.partition(":")
    *holders, name = path.split(".")
    owner = importlib.import_module(module)
    owner = attrgetter(".".join(holders))(owner) if holders else owner
    function, calls = getattr(owner, name), itertools.count(1)

    def call(*args: object, **options: object) -> object:
        counts = not text or any(str(argument).endswith(text) for argument in args)
        last = counts and next(calls) == int(number)
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)
    sys.argv, sys.path[0] = [program, *flags], str(Path(program).parent)
    run = runpy.run_path if program.endswith(".py") else runpy.run_module
    run(program, run_name="__main__")


if __name__ == "__main__":
    main()
