"""Whether the installed packages fit together, and torch's CUDA to the driver.

It reads metadata and imports none of them, so it answers at once, and also where an import fails.
"""

from __future__ import annotations

import ast
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from sp500.doctor.check import Check, Probe, ok, wrong

OURS = "sp500"
# The two that have a line of their own.
SHOWN = ("torch", "ray")
INSTALL = "scripts/install makes .venv with the versions that were tested together"
NVIDIA_SECONDS = 10
# Faults that are printed one by one.
MOST = 3


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str
    requires: tuple[str, ...] = ()
    python: str = ""
    """Versions of Python that it runs on."""


FindPackage = Callable[[str], Package | None]


@dataclass(frozen=True)
class Misfit:
    """A requirement that what is installed does not meet."""

    name: str
    found: str
    """Version that is installed, or empty."""
    wanted: str
    owner: str
    """Who requires it."""

    def __str__(self) -> str:
        wants = f"{self.owner} wants {self.wanted or 'it'}"
        return f"{self.name} {self.found} ({wants})" if self.found else f"{self.name} is missing ({wants})"


@dataclass(frozen=True)
class Gpus:
    """What NVIDIA's driver says of itself."""

    names: tuple[str, ...]
    cuda: str
    """Newest CUDA that it runs, MAJOR.MINOR."""


def probes() -> list[Probe]:
    """The checks of this module."""
    return [
        ("python", lambda: [python(platform.python_version(), find_package(OURS))]),
        ("requirements", lambda: packages(find_package)),
        ("cuda", lambda: [cuda(torch_cuda(), gpus())]),
    ]


def python(found: str, ours: Package | None) -> Check:
    """The interpreter's version against ours."""
    if ours is None or found in SpecifierSet(ours.python):
        return ok("python", found)
    return wrong("python", f"{found}, where {OURS} needs {ours.python}", f"set PYTHON to such a one: {INSTALL}")


def packages(find_package: FindPackage) -> list[Check]:
    """Torch and Ray by themselves, then all that we require and what that requires in turn."""
    visited, misfits = walk_requirements(find_package)
    ours = {misfit.name: misfit for misfit in misfits if misfit.owner == OURS and misfit.name in SHOWN}
    return [
        *(_check_package(name, find_package(name), ours.get(name)) for name in SHOWN),
        _others(visited, misfits, ours),
    ]


def walk_requirements(find_package: FindPackage) -> tuple[set[str], list[Misfit]]:
    """Names of what is installed and required, by us or beneath; and each requirement missing or not admitted."""
    visited: set[tuple[str, str]] = set()
    misfits: dict[str, Misfit] = {}
    waiting = [(OURS, "")]
    while waiting:
        owner, extra = waiting.pop()
        package = find_package(owner)
        if package is None or (owner, extra) in visited:
            continue
        visited.add((owner, extra))
        for requirement in map(Requirement, package.requires):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            required = find_package(name)
            if required is None or not requirement.specifier.contains(required.version, prereleases=True):
                misfit = Misfit(name, required.version if required else "", str(requirement.specifier), owner)
                misfits[str(misfit)] = misfit
            waiting += [(name, extra) for extra in ("", *requirement.extras)]
    return {name for name, _ in visited} - {OURS}, list(misfits.values())


def _check_package(name: str, package: Package | None, misfit: Misfit | None) -> Check:
    if misfit or not package:
        return wrong(name, str(misfit or "is missing"), INSTALL)
    return ok(name, package.version)


def _others(visited: set[str], misfits: list[Misfit], shown: Mapping[str, Misfit]) -> Check:
    name = "requirements"
    if not visited:
        return wrong(name, f"{OURS} is not installed, so what it requires is not known", INSTALL)
    if left := [str(misfit) for misfit in misfits if misfit not in shown.values()]:
        more = f" and {len(left) - MOST} more" if len(left) > MOST else ""
        return wrong(name, "; ".join(left[:MOST]) + more, INSTALL)
    return ok(name, f"{len(visited)} packages fit together" if not shown else "all others fit together")


def find_package(name: str) -> Package | None:
    """What is installed under that name; None for nothing, or for what an install left half done."""
    try:
        distribution = metadata.distribution(name)
        fields = distribution.metadata
    except (metadata.PackageNotFoundError, FileNotFoundError):
        return None
    # Not fields[name]: once importlib_metadata is imported, fields are its own, which raise for one that is missing.
    version, python = ((fields.get_all(name) or [""])[0] for name in ("Version", "Requires-Python"))
    return Package(version, tuple(distribution.requires or ()), python) if version else None


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


def _major(version: str) -> int:
    return int(version.partition(".")[0])
