"""Add the hashes of a release's wheels to each pinned requirement: `NAME==VERSION` lines on stdin, a lock on stdout.

The hashes are those that the package index publishes for the wheels of a release, on all platforms, so that a lock
written on one installs on another; wheels for other versions of Python are left out. Source distributions get no hash,
so pip refuses them. The index is the one that pip is configured with; its JSON form is PEP 691.
"""

import json
import re
import subprocess
import sys
import urllib.request

JSON = "application/vnd.pypi.simple.v1+json"
PYTHON = (3, 11)


def index_url() -> str:
    """The index that pip is configured with."""
    argv = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip().rstrip("/") or "https://pypi.org/simple"


def normalize(name: str) -> str:
    """A project's name as the index has it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release(wheel: str) -> tuple[str, str]:
    """Name and version in a wheel's file name: NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl."""
    name, version, *_ = wheel.split("-")
    return normalize(name), version


def suits(wheel: str) -> bool:
    """Return whether a wheel is for our Python: any 3, ours, or the stable ABI of an older one."""
    *_, pythons, abi, _ = wheel.removesuffix(".whl").split("-")
    older = {f"cp3{minor}" for minor in range(2, PYTHON[1])} if "abi3" in abi else set()
    return bool(set(pythons.split(".")) & {"py3", f"py3{PYTHON[1]}", f"cp3{PYTHON[1]}", *older})


def wheel_hashes(index: str, name: str, version: str) -> list[str]:
    """SHA-256 of every wheel of a release. Exits with a message if there is none."""
    project = normalize(name)
    request = urllib.request.Request(f"{index}/{project}/", headers={"Accept": JSON})  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        files = json.load(answer)["files"]
    hashes = [
        file["hashes"]["sha256"]
        for file in files
        if (wheel := file["filename"]).endswith(".whl")
        and release(wheel) == (project, version)
        and suits(wheel)
        and not file.get("yanked")
    ]
    if not hashes:
        sys.exit(f"{name}=={version}: the index has no wheel of this release")
    return sorted(set(hashes))


def main() -> None:
    """Write the lock."""
    index = index_url()
    for line in sys.stdin.read().split():
        name, _, version = line.partition("==")
        print(f"{line} \\")
        print(" \\\n".join(f"    --hash=sha256:{digest}" for digest in wheel_hashes(index, name, version)))


if __name__ == "__main__":
    main()
