"""Whether the installed packages fit together, and torch's CUDA to the driver: told by metadata, importing neither.

So it answers at once, and also where importing them is what fails.
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

from sp500.doctor.check import Check, Look, ok, wrong

OURS = "sp500"
# The two that have a line of their own.
SHOWN = ("torch", "ray")
INSTALL = "scripts/install makes .venv with the versions that were tested together"
NVIDIA_SECONDS = 10
# Faults that are told one by one.
MOST = 3


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str
    requires: tuple[str, ...] = ()
    python: str = ""
    """Versions of Python that it runs on."""


Installed = Callable[[str], Package | None]


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


def looks() -> list[Look]:
    """What to look at."""
    return [
        ("python", lambda: [python(platform.python_version(), installed(OURS))]),
        ("requirements", lambda: packages(installed)),
        ("cuda", lambda: [cuda(torch_cuda(), gpus())]),
    ]


def python(found: str, ours: Package | None) -> Check:
    """The interpreter's version against ours."""
    if ours is None or found in SpecifierSet(ours.python):
        return ok("python", found)
    return wrong("python", f"{found}, where {OURS} needs {ours.python}", f"set PYTHON to such a one: {INSTALL}")


def packages(installed: Installed) -> list[Check]:
    """Torch and Ray by themselves, then all that we require and what that requires in turn."""
    visited, misfits = walked(installed)
    ours = {one.name: one for one in misfits if one.owner == OURS and one.name in SHOWN}
    return [*(_shown(name, installed(name), ours.get(name)) for name in SHOWN), _others(visited, misfits, ours)]


def walked(installed: Installed) -> tuple[set[str], list[Misfit]]:
    """Names of what is installed and required, by us or beneath; and each requirement missing or not admitted."""
    seen: set[tuple[str, str]] = set()
    misfits: dict[str, Misfit] = {}
    waiting = [(OURS, "")]
    while waiting:
        owner, extra = waiting.pop()
        found = installed(owner)
        if found is None or (owner, extra) in seen:
            continue
        seen.add((owner, extra))
        for requirement in map(Requirement, found.requires):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            has = installed(name)
            if has is None or not requirement.specifier.contains(has.version, prereleases=True):
                one = Misfit(name, has.version if has else "", str(requirement.specifier), owner)
                misfits[str(one)] = one
            waiting += [(name, extra) for extra in ("", *requirement.extras)]
    return {name for name, _ in seen} - {OURS}, list(misfits.values())


def _shown(name: str, found: Package | None, misfit: Misfit | None) -> Check:
    if misfit or not found:
        return wrong(name, str(misfit or "is missing"), INSTALL)
    return ok(name, found.version)


def _others(visited: set[str], misfits: list[Misfit], told: Mapping[str, Misfit]) -> Check:
    name = "requirements"
    if not visited:
        return wrong(name, f"{OURS} is not installed, so what it requires is not known", INSTALL)
    if left := [str(one) for one in misfits if one not in told.values()]:
        more = f" and {len(left) - MOST} more" if len(left) > MOST else ""
        return wrong(name, "; ".join(left[:MOST]) + more, INSTALL)
    return ok(name, f"{len(visited)} packages fit together" if not told else "all others fit together")


def installed(name: str) -> Package | None:
    """What is installed under that name; None for nothing, or for what an install left half done."""
    try:
        found = metadata.distribution(name)
        fields = found.metadata
    except (metadata.PackageNotFoundError, FileNotFoundError):
        return None
    # Not fields[name]: once importlib_metadata is imported, fields are its own, which raise for one that is missing.
    version, python = ((fields.get_all(name) or [""])[0] for name in ("Version", "Requires-Python"))
    return Package(version, tuple(found.requires or ()), python) if version else None


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
        said = (listed.stdout + listed.stderr + whole.stdout + whole.stderr).strip()
        return said.splitlines()[0] if said else f"exit code {listed.returncode or whole.returncode}"
    return told(listed.stdout, whole.stdout)


def told(listed: str, whole: str) -> Gpus | str:
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
    found = f"{_counted(driver.names)}, driver for CUDA {driver.cuda}; {torch}"
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


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _major(version: str) -> int:
    return int(version.partition(".")[0])
