"""Whether torchvision is of torch's build: one for CUDA next to a torch for CPUs also breaks timm and transformers.

It is imported in a process of its own, since that is what fails, and takes torch along. What the two are is read from
their files: the version that a package's metadata has may lack the build.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sp500.doctor.check import Check, Probe, ok, wrong

NAME = "torchvision"
INDEX = "https://download.pytorch.org/whl"
SECONDS = 120
MINOR_GAP = 15
"""torchvision 0.N is for torch 2.(N - 15), from 0.15 on."""
WRONG_BUILD = 2
"""Exit code: not the machine but what is installed is wrong."""


def probe() -> Probe:
    """The check of this module."""
    return NAME, torchvision


def torchvision() -> Sequence[Check]:
    """How its import goes; nothing where it is not installed."""
    if find_spec(NAME) is None:
        return ()
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", f"import {NAME}"], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    error = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    return [compare(version("torch"), version(NAME), "" if done.returncode == 0 else error)]


def compare(torch: str, found: str, error: str) -> Check:
    """`torch` and `found` are the versions of torch and torchvision with their builds, `error` why the import fails."""
    if not error:
        return ok(NAME, f"{found}, with torch {torch}")
    message = f"torchvision {found or '?'} cannot be imported with torch {torch or '?'} ({error:.160})"
    return wrong(NAME, message, advice(torch), code=WRONG_BUILD)


def advice(torch: str) -> str:
    """How to install a torchvision of the build of this torch; `torch` is its version, such as 2.13.0+cpu."""
    release = re.match(r"2\.(\d+)\.", torch)
    if not release:
        return "install the torchvision that belongs to torch, from the same index"
    build = torch.partition("+")[2]
    index = f" --index-url {INDEX}/{build}" if build else ""
    return f"pip install --force-reinstall --no-deps{index} 'torchvision==0.{int(release[1]) + MINOR_GAP}.*'"


def version(package: str) -> str:
    """The version with its build, 2.13.0+cpu, from a package's version.py; empty where that says none."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin).with_name("version.py")
    for node in ast.parse(file.read_text()).body if file.exists() else ():
        names = [ast.unparse(name) for name in node.targets] if isinstance(node, ast.Assign) else []
        if "__version__" in names and isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return ""
