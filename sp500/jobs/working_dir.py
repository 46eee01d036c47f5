"""What `ray job submit --working-dir` would upload, and whether it is small enough.

Ray finds out after it has packed everything: the dashboard refuses a body of over 100 MiB, and names no file.
"""

from __future__ import annotations

import os
from pathlib import Path

from pathspec import PathSpec

from sp500.errors import ConfigError

# The dashboard's DASHBOARD_CLIENT_MAX_SIZE. Ray's package is a zip that compresses nothing.
LIMIT_BYTES = 100 * 2**20
# Ray's own default (RAY_RUNTIME_ENV_DEFAULT_EXCLUDES).
ALWAYS_LEFT_OUT = (".git", ".venv", "venv", "__pycache__")
IGNORE_FILES = (".gitignore", ".rayignore")
NAMED = 5


def files(folder: Path) -> dict[str, int]:
    """Bytes of each file that would be uploaded, by its path in the folder."""
    found: dict[str, int] = {}
    left_out = [*ALWAYS_LEFT_OUT]
    for name in IGNORE_FILES:
        path = folder / name
        left_out += path.read_text().splitlines() if path.is_file() else []
    ignored = PathSpec.from_lines("gitignore", left_out)
    for parent, inner, names in os.walk(folder):
        here = Path(parent).relative_to(folder)
        inner[:] = [name for name in inner if not ignored.match_file(f"{here / name}/")]
        for name in names:
            path = here / name
            if not ignored.match_file(str(path)) and (folder / path).is_file():
                found[str(path)] = (folder / path).stat().st_size
    return found


def submit_hook(*, working_dir: str | None = None, **_: object) -> None:
    """What `ray job submit` calls first where RAY_JOB_SUBMIT_HOOK names it; too large a folder ends it there."""
    if working_dir and "://" not in working_dir and not working_dir.endswith(".zip"):
        try:
            check(Path(working_dir))
        except ConfigError as error:
            raise SystemExit(f"ConfigError: {error}") from None


def check(folder: Path) -> int:
    """Bytes that would be uploaded. Raises ConfigError, naming the largest files, for more than Ray takes."""
    if not folder.is_dir():
        raise ConfigError(f"--working-dir {folder}: no such folder")
    sizes = files(folder)
    total = sum(sizes.values())
    if total > LIMIT_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:NAMED]
        lines = [f"  {sizes[name] / 2**20:8.1f} MiB  {name}" for name in largest]
        raise ConfigError(
            f"--working-dir {folder}: {total / 2**20:.1f} MiB, over the {LIMIT_BYTES >> 20} MiB that Ray takes. Name "
            "in .rayignore what a job does not need, and put data on the cluster's storage (scripts/upload-data). "
            "The largest files:\n" + "\n".join(lines)
        )
    return total
