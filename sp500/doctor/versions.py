"""Check that the installed packages fit together, and torch's CUDA to the driver.

It imports none of them, so it also answers if an import fails.
"""

from __future__ import annotations

import ast
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

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


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str
    python: str = ""
    """Versions of Python that it runs on."""


@dataclass(frozen=True)
class Gpus:
    """What NVIDIA's driver says of itself."""

    names: tuple[str, ...]
    cuda: str
    """Newest CUDA that it runs, MAJOR.MINOR."""


def probes() -> list[Probe]:
    """Return the checks of this module."""
    return [
        ("python", lambda: [python(platform.python_version(), find_package(OURS))]),
        (REQUIREMENTS, lambda: packages({name: find_package(name) for name in SHOWN}, check_requirements())),
        ("cuda", lambda: [cuda(torch_cuda(), gpus())]),
    ]


def python(found: str, ours: Package | None) -> Check:
    """Compare the interpreter's version with ours, such as >=3.11,<3.12."""
    needed = ours.python if ours else ""
    versions = re.findall(r"(>=|<)\s*([\d.]+)", needed)
    if all((_number(found) >= _number(limit)) == (sign == ">=") for sign, limit in versions):
        return ok("python", found)
    return wrong("python", f"{found}, where {OURS} needs {needed}", f"set PYTHON to such a one: {INSTALL}")


def packages(shown: dict[str, Package | None], faults: Sequence[str] | None) -> list[Check]:
    """Report torch and Ray by themselves, then everything else. `faults` are pip's; None if there is no pip."""
    checks, left = [], list(faults or ())
    for name, package in shown.items():
        # "sp500 0.1.0 has requirement ray<2.61, but you have ray 2.40.0.", "... requires ray, which is not installed."
        of_it = [fault for fault in left if re.search(rf" (has requirement|requires) {name}(?![-.\w])", fault)]
        left = [fault for fault in left if fault not in of_it]
        if package is None or of_it:
            checks.append(wrong(name, of_it[0] if of_it else "is missing", INSTALL))
        else:
            checks.append(ok(name, package.version))
    if faults is None:
        return [*checks, skipped(REQUIREMENTS, "there is no pip in this environment to check them")]
    if not left:
        return [*checks, ok(REQUIREMENTS, "pip finds no package that does not fit")]
    more = f" and {len(left) - MOST} more (pip check)" if len(left) > MOST else ""
    return [*checks, wrong(REQUIREMENTS, "; ".join(left[:MOST]) + more, INSTALL)]


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


def torch_cuda() -> str | None:
    """CUDA that torch was built for, MAJOR.MINOR, as its version.py says; None for a build for CPUs, or no torch."""
    try:
        file = metadata.distribution("torch").locate_file("torch/version.py")
        tree = ast.parse(file.read_text())
    except (metadata.PackageNotFoundError, FileNotFoundError):
        return None
    for node in tree.body:  # cuda: Optional[str] = "13.0"
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "cuda" and node.value:
            return ast.literal_eval(node.value)  # type: ignore[no-any-return]
    return None


def gpus() -> Gpus | str | None:
    """What nvidia-smi says: the GPUs, its complaint, or None where there is no nvidia-smi."""
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
    """The driver in what `nvidia-smi --list-gpus` and `nvidia-smi` print."""
    cuda = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", whole)
    if not cuda:
        return "it names no CUDA version"
    return Gpus(tuple(re.findall(r"^GPU \d+: (.*?)(?: \(UUID.*)?$", listed, re.MULTILINE)), cuda[1])


def cuda(build: str | None, driver: Gpus | str | None) -> Check:
    """The CUDA of torch against the driver's. Within one major version, CUDA's minor versions go together."""
    torch = f"torch is built for CUDA {build}" if build else "torch is built for CPUs alone"
    if driver is None or (isinstance(driver, Gpus) and not driver.names):
        return ok("cuda", f"no GPU here; {torch}")
    if isinstance(driver, str):
        return wrong(
            "cuda", f"nvidia-smi fails: {driver}", "repair the NVIDIA driver, or remove it where there is no GPU"
        )
    found = f"{_count_names(driver.names)}, driver for CUDA {driver.cuda}; {torch}"
    if build is None:
        return wrong(
            "cuda", found, f"install a build of torch for CUDA {driver.cuda} or older, or the GPUs stay unused"
        )
    if _major(build) > _major(driver.cuda):
        return wrong("cuda", found, f"update the driver, or install a build of torch for CUDA {_major(driver.cuda)}")
    return ok("cuda", found)


def _nvidia(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["nvidia-smi", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=NVIDIA_SECONDS)  # noqa: S603


def _count_names(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _major(version: str) -> int:
    return int(version.partition(".")[0])
