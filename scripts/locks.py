"""Write or check the locks of all Pythons and machines; scripts/lock runs it and says what they are.

uv resolves the project with all extras into one uv.lock, which has the hash of every file, and exports the lines of
each lock from it. Only wheels for our Pythons and machines get their hash into a lock: pip refuses everything else.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = {
    ("linux", "x86_64"): "manylinux_2_28",
    ("linux", "aarch64"): "manylinux_2_28",
    ("darwin", "arm64"): "macosx",
}
# torch 2.13 has wheels for macOS 14 and later.
OLDEST_MACOS = range(11, 16)
# Of one build, which the machine decides: scripts/torch.lock.
APART = re.compile(r"(torch|torchvision|triton|nvidia-.*|cuda-.*)==")
CORE, EXTRAS = ("yahoo", "cluster", "agent"), ("serve", "llm", "mlflow", "vision", "garch", "cmaes")
TOOLS = {"checkov": "checkov", "moto": "moto[server]"}
PLATFORM = re.compile(r"any|manylinux.*_(x86_64|aarch64)|macosx_.*_(arm64|universal2)")
SHORT = ("", "sys_platform == 'linux'", "sys_platform == 'darwin'")
LOCKS = Path(__file__).parent


def environments() -> list[dict[str, str]]:
    """Return the variables of markers for each machine and Python."""
    return [
        {
            "sys_platform": system,
            "platform_system": system.capitalize(),
            "platform_machine": machine,
            "os_name": "posix",
            "python_version": python,
            "python_full_version": f"{python}.9",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": "",
        }
        for system, machine in MACHINES
        for python in PYTHONS
    ]


def suits(wheel: str) -> bool:
    """Return whether a wheel is for one of our machines and Pythons, by the stable ABI of an older one as well."""
    ours = {int(python.removeprefix("3.")) for python in PYTHONS}
    names = {"py3", *(f"{kind}3{minor}" for kind in ("py", "cp") for minor in ours)}
    stable = {f"cp3{minor}" for minor in range(2, max(ours) + 1)}
    return any(
        PLATFORM.fullmatch(tag.platform)
        and tag.interpreter in (stable if tag.abi == "abi3" else names)
        and tag.abi in {"none", "abi3", tag.interpreter}  # cp313t: without the lock of the interpreter
        for tag in parse_wheel_filename(wheel)[3]
    )


def shorten(marker: str) -> str:
    """Return the shortest marker that says the same on all our machines and Pythons."""

    def evaluate(text: str) -> list[bool]:
        return [not text or Marker(text).evaluate(environment) for environment in environments()]

    return next((short for short in SHORT if evaluate(short) == evaluate(marker)), marker)


def locked(*names: str) -> list[str]:
    """Return the requirements of locks, with their markers and without their hashes."""
    lines = [line for name in names for line in (LOCKS / f"{name}.lock").read_text().splitlines()]
    return [line.removesuffix(" \\") for line in lines if line and line[0] not in "# "]


def resolve(folder: Path, dependencies: list[str], extras: dict[str, list[str]], kept: list[str]) -> None:
    """Resolve a project into `folder`/uv.lock, with one version of each package for all machines and Pythons."""
    wanted = " or ".join(f"(sys_platform == '{system}' and platform_machine == '{arch}')" for system, arch in MACHINES)
    bounded = f"python_full_version < '3.{int(PYTHONS[-1].removeprefix('3.')) + 1}' and ({wanted})"
    text = [
        '[project]\nname = "locked"\nversion = "0"',
        f'requires-python = ">={PYTHONS[0]}"',
        f"dependencies = {json.dumps(dependencies)}",
        "[project.optional-dependencies]",
        *(f"{extra} = {json.dumps(lines)}" for extra, lines in extras.items()),
        '[tool.uv]\npackage = false\nfork-strategy = "fewest"',
        f"environments = {json.dumps([bounded])}",
        f"constraint-dependencies = {json.dumps(kept)}",
    ]
    (folder / "pyproject.toml").write_text("\n".join(text))
    uv(folder, "lock", "--python", sys.executable)


def uv(folder: Path, *words: str) -> str:
    """Return what uv prints in a folder. Exits with its message if it fails."""
    done = subprocess.run(["uv", "--quiet", *words], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603, S607
    return done.stdout if done.returncode == 0 else sys.exit(done.returncode)


def export(folder: Path, *extras: str) -> list[str]:
    """Return the lines of a lock: what the project needs with some extras."""
    flags = [word for extra in extras for word in ("--extra", extra)]
    plain = ["--frozen", "--no-header", "--no-annotate", "--no-hashes", "--no-emit-project"]
    packages = tomllib.loads((folder / "uv.lock").read_text())["package"]
    wheels = {f"{package['name']}=={package['version']}": package.get("wheels", []) for package in packages}
    lines = []
    for line in uv(folder, "export", *plain, *flags).splitlines():
        pin, _, marker = (part.strip() for part in line.partition(";"))
        if APART.match(pin):
            continue
        hashes = {wheel["hash"] for wheel in wheels[pin] if suits(wheel["url"].rpartition("/")[2])}
        if not hashes:
            sys.exit(f"{pin} has no wheel for our machines and Pythons")
        condition = f" ; {short}" if (short := shorten(marker)) else ""
        lines.append(" \\\n".join([f"{pin}{condition}", *(f"    --hash={digest}" for digest in sorted(hashes))]))
    return lines


def write(name: str, use: str, lines: list[str]) -> None:
    """Write a lock."""
    (LOCKS / f"{name}.lock").write_text("\n".join([f"# Written by scripts/lock. {use}", *lines, ""]))


def lock(*, keep: bool) -> None:
    """Write all locks."""
    project = tomllib.loads((LOCKS.parent / "pyproject.toml").read_text())["project"]
    kept = locked("requirements", *EXTRAS) if keep else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apart = locked("torch", "torchvision")
        needed = [*project["dependencies"], "setuptools>=80"]  # which installs the project into .venv
        resolve(folder, needed, project["optional-dependencies"], [*kept, *apart])
        runtime = export(folder, *CORE)
        write("runtime", "The Dockerfile installs it.", runtime)
        write("requirements", "Install with scripts/install.", export(folder, *CORE, "dev"))
        for extra in EXTRAS:
            added = [line for line in export(folder, *CORE, extra) if line not in runtime]
            write(extra, "Install on top of scripts/runtime.lock.", added)
    for tool, requirement in TOOLS.items():
        with tempfile.TemporaryDirectory() as name:
            resolve(Path(name), [requirement], {}, locked(tool) if keep else [])
            write(tool, f"Install with scripts/{tool}.", export(Path(name)))


def applicable(environment: dict[str, str]) -> list[str]:
    """Return the requirements of all locks that apply to a machine and Python, with their hashes."""
    lines = []
    for name in ("requirements", *EXTRAS):
        for block in re.findall(r"^\w.*(?:\n    .*)*", (LOCKS / f"{name}.lock").read_text(), re.MULTILINE):
            marker = block.partition(" \\\n")[0].partition(" ; ")[2]
            if not marker or Marker(marker).evaluate(environment):
                lines.append(block.replace(f" ; {marker}", "", 1) if marker else block)
    return sorted(set(lines))


def platforms(environment: dict[str, str]) -> list[list[str]]:
    """Return the platform tags of a machine; on macOS one list for each release, the oldest first."""
    machine = environment["platform_machine"]
    if environment["sys_platform"] == "darwin":
        return [[f"macosx_{release}_0_{machine}"] for release in range(11, 16)]  # pip adds the older ones itself
    return [[f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in range(17, 29))]]


def download(folder: Path, environment: dict[str, str], tags: list[str]) -> str:
    """Download what a machine with these platform tags would install, by hash. Returns pip's complaint."""
    (folder / "requirements.txt").write_text("\n".join(applicable(environment)))
    python = environment["python_version"]
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    argv += ["--require-hashes", "--requirement", str(folder / "requirements.txt"), "--dest", str(folder)]
    argv += ["--python-version", python, "--implementation", "cp"]
    for flag, values in {"--abi": [f"cp{python.replace('.', '')}", "abi3", "none"], "--platform": tags}.items():
        argv += [word for value in values for word in (flag, value)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def check() -> bool:
    """Download everything for each machine and Python, and print a line for each. Returns whether all was there."""
    complaint, complete = "", True
    for environment in environments():
        with tempfile.TemporaryDirectory() as name:
            for tags in platforms(environment):
                complaint = download(Path(name), environment, tags)
                if not complaint:
                    break
        complete = complete and not complaint
        line = f"Python {environment['python_version']}, {tags[-1]}: {len(applicable(environment))} packages"
        print(f"{line}, {complaint or 'all there'}", flush=True)
    return complete


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(not check())
    lock(keep=sys.argv[1:] == ["--keep"])
