"""Check that the installed packages fit together, torch's CUDA to the driver, and torchvision's build to torch's.

It imports none of them, so it also answers if an import fails. torchvision is imported in a process of its own, since
that is what fails: one for CUDA next to a torch for CPUs also breaks timm and transformers.
"""

from __future__ import annotations

import ast
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sp500.doctor.check import Check, Probe, ok, skipped, wrong

OURS = "sp500"
REQUIREMENTS = "requirements"
# The two that have a line of their own.
SHOWN = ("torch", "ray")
INSTALL = "scripts/install makes .venv with the versions that were tested together"
# From -P on, the current folder is not searched for packages.
PIP_CHECK = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "check")
PIP_SECONDS, NVIDIA_SECONDS = 60, 10
# Faults that are printed one by one.
MOST = 3
VISION, INDEX, VISION_SECONDS = "torchvision", "https://download.pytorch.org/whl", 120
MINOR_GAP = 15
"""torchvision 0.N is for torch 2.(N - 15), from 0.15 on."""
WRONG_BUILD = 2
"""Exit code: not the machine but what is installed is wrong."""


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str
    python: str = ""
    """Versions of Python that it runs on."""


@dataclass(frozen=True)
class Gpus:
    """Versions and GPUs that NVIDIA's driver reports."""

    names: tuple[str, ...]
    cuda: str
    """Newest CUDA that it runs, MAJOR.MINOR."""


def probes() -> list[Probe]:
    """Return the checks of this module."""
    return [
        ("python", lambda: [python(platform.python_version(), find_package(OURS))]),
        (REQUIREMENTS, lambda: packages({name: find_package(name) for name in SHOWN}, check_requirements())),
        ("cuda", lambda: [cuda(read_build("torch").get("cuda"), gpus())]),
        (VISION, torchvision),
    ]


def python(found: str, ours: Package | None) -> Check:
    """Compare the interpreter's version with ours, such as >=3.11,<3.12."""
    needed = ours.python if ours else ""
    versions = re.findall(r"(>=|<)\s*([\d.]+)", needed)
    if all((_number(found) >= _number(limit)) == (sign == ">=") for sign, limit in versions):
        return ok("python", found)
    return wrong("python", f"{found}, where {OURS} needs {needed}", f"set PYTHON to such a one: {INSTALL}")


def packages(shown: dict[str, Package | None], faults: Sequence[str] | None) -> list[Check]:
    """Report torch and Ray by themselves, then whether all fits. `faults` are pip's; None if there is no pip."""
    checks = [
        ok(name, package.version) if package else wrong(name, "is missing", INSTALL) for name, package in shown.items()
    ]
    if faults is None:
        return [*checks, skipped(REQUIREMENTS, "there is no pip in this environment to check them")]
    if not faults:
        return [*checks, ok(REQUIREMENTS, "pip finds no package that does not fit")]
    more = f" and {len(faults) - MOST} more (pip check)" if len(faults) > MOST else ""
    return [*checks, wrong(REQUIREMENTS, "; ".join(faults[:MOST]) + more, INSTALL)]


def check_requirements() -> list[str] | None:
    """Return the faults that `pip check` prints, one a line; None if there is no pip.

    It leaves out what extras of other packages require, such as those of ray[data].
    """
    if find_package(OURS) is None:
        return [f"{OURS} is not installed, so what it requires is not known"]
    done = subprocess.run(PIP_CHECK, capture_output=True, text=True, check=False, timeout=PIP_SECONDS)  # noqa: S603
    if "No module named pip" in done.stderr:
        return None
    faults = done.stdout.splitlines() or done.stderr.splitlines()[-1:]
    return [fault.rstrip(".") for fault in faults] if done.returncode else []


def find_package(name: str) -> Package | None:
    """Return what is installed under that name; None for nothing, or for what an install left half done."""
    try:
        fields = metadata.distribution(name).metadata
    except (metadata.PackageNotFoundError, FileNotFoundError):
        return None
    # Not fields[name]: once importlib_metadata is imported, fields are its own, which raise for one that is missing.
    version, python = ((fields.get_all(name) or [""])[0] for name in ("Version", "Requires-Python"))
    return Package(version, python) if version else None


def read_build(package: str) -> dict[str, Any]:
    """Return the constants of a package's version.py, such as `cuda` and `__version__` with its build; {} for none.

    The version that a package's metadata has may lack the build.
    """
    spec = find_spec(package)
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    constants = {}
    for node in ast.parse(file.read_text()).body if file and file.exists() else ():
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target  # cuda: Optional[str] = "13.0"
            constants[ast.unparse(target)] = node.value.value
    return constants


def gpus() -> Gpus | str | None:
    """Return what nvidia-smi says: the GPUs, its complaint, or None if there is no nvidia-smi."""
    try:
        listed, whole = (_nvidia("--list-gpus"), _nvidia())
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        return f"no answer within {NVIDIA_SECONDS} s"
    if listed.returncode or whole.returncode:
        output = (listed.stdout + listed.stderr + whole.stdout + whole.stderr).strip()
        return output.splitlines()[0] if output else f"exit code {listed.returncode or whole.returncode}"
    return parse_nvidia_smi(listed.stdout, whole.stdout)


def parse_nvidia_smi(listed: str, whole: str) -> Gpus | str:
    """Return the driver in what `nvidia-smi --list-gpus` and `nvidia-smi` print."""
    cuda = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", whole)
    if not cuda:
        return "it names no CUDA version"
    return Gpus(tuple(re.findall(r"^GPU \d+: (.*?)(?: \(UUID.*)?$", listed, re.MULTILINE)), cuda[1])


def cuda(build: str | None, driver: Gpus | str | None) -> Check:
    """Compare the CUDA of torch with the driver's. Within one major version, CUDA's minor versions go together."""
    torch = f"torch is built for CUDA {build}" if build else "torch is built for CPUs alone"
    if driver is None or (isinstance(driver, Gpus) and not driver.names):
        return ok("cuda", f"no GPU here; {torch}")
    if isinstance(driver, str):
        return wrong(
            "cuda", f"nvidia-smi fails: {driver}", "repair the NVIDIA driver, or remove it where there is no GPU"
        )
    names = ", ".join(f"{count} x {name}" for name, count in Counter(driver.names).items())
    found = f"{names}, driver for CUDA {driver.cuda}; {torch}"
    if build is None:
        return wrong(
            "cuda", found, f"install a build of torch for CUDA {driver.cuda} or older, or the GPUs stay unused"
        )
    if _major(build) > _major(driver.cuda):
        return wrong("cuda", found, f"update the driver, or install a build of torch for CUDA {_major(driver.cuda)}")
    return ok("cuda", found)


def torchvision() -> Sequence[Check]:
    """Check how its import goes; nothing if it is not installed."""
    if find_spec(VISION) is None:
        return ()
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", f"import {VISION}"], capture_output=True, text=True, check=False, timeout=VISION_SECONDS
    )
    torch, build = (str(read_build(name).get("__version__", "")) for name in ("torch", VISION))
    if not done.returncode:
        return [ok(VISION, f"{build}, with torch {torch}")]
    error = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    message = f"torchvision {build or '?'} cannot be imported with torch {torch or '?'} ({error:.160})"
    return [wrong(VISION, message, advise_torchvision(torch), code=WRONG_BUILD)]


def advise_torchvision(torch: str) -> str:
    """Return how to install a torchvision of the build of this torch; `torch` is its version, such as 2.13.0+cpu."""
    release = re.match(r"2\.(\d+)\.", torch)
    if not release:
        return "install the torchvision that belongs to torch, from the same index"
    build = torch.partition("+")[2]
    index = f" --index-url {INDEX}/{build}" if build else ""
    return f"pip install --force-reinstall --no-deps{index} 'torchvision==0.{int(release[1]) + MINOR_GAP}.*'"


def _nvidia(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["nvidia-smi", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=NVIDIA_SECONDS)  # noqa: S603


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _major(version: str) -> int:
    return int(version.partition(".")[0])
