"""Contents of `ray job submit --working-dir`: without credentials, and checked for their size.

Ray finds out about the size after it has packed everything: the dashboard refuses a body of over 100 MiB and names no
file. Credentials are left out whatever the folder's ignore files say, because everybody with the cluster's token can
read an uploaded folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pathspec import PathSpec

from sp500.errors import ConfigError

# The dashboard's DASHBOARD_CLIENT_MAX_SIZE. Ray's package is a zip that compresses nothing.
LIMIT_BYTES = 100 * 2**20
# Ray's own default (RAY_RUNTIME_ENV_DEFAULT_EXCLUDES).
ALWAYS_LEFT_OUT = (".git", ".venv", "venv", "__pycache__")
# Patterns of .gitignore. The same are in .rayignore, for a submission without the hook.
CREDENTIALS = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".npmrc", ".git-credentials"),
    *(".aws", ".azure", ".config/gcloud", ".docker", ".gnupg", ".kube", ".ssh"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "id_rsa*", "id_ed25519*", "id_ecdsa*"),
    *("kubeconfig*", "*.kubeconfig", "credentials", "credentials.json", "service-account*.json", "auth_token"),
    *(".htpasswd", ".s3cfg", ".boto"),
)
# Of single files that a user names, where a wrong guess is seen. Tokens are also what text is split into.
SECRETS = ("*token*", "!*tokeni[sz]*", "!*.py", "*secret*", "*api_key*")
# Ray reads its default excludes from this variable when it packs.
EXCLUDES_VARIABLE = "RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"
IGNORE_FILES = (".gitignore", ".rayignore")
NAMED = 5


def files(folder: Path) -> dict[str, int]:
    """Return the bytes of each file that would be uploaded, by its path in the folder.

    As Ray packs: it follows links, and an ignore file holds for the folder that it is in, whatever others say. Raises
    ConfigError for a link to a folder that it is in.
    """
    sizes: dict[str, int] = {}
    # Of its own, so that a `!pattern` of an ignore file brings no credentials back.
    always = PathSpec.from_lines("gitignore", (*ALWAYS_LEFT_OUT, *CREDENTIALS))

    def visit(path: Path, specs: list[tuple[Path, PathSpec[Any]]], above: list[Path]) -> None:
        """Add the files of a path that no ignore file above it names."""
        if path.is_dir():
            specs = [*specs, *_read_ignore_files(path)]
        if any(spec.match_file(str(path.relative_to(root))) for root, spec in specs):
            return
        if path.is_file():
            sizes[str(path.relative_to(folder))] = path.stat().st_size
        elif path.is_dir():
            real = path.resolve()
            if real in above:
                raise ConfigError(f"{path}: this link leads to a folder that it is in. Name it in .rayignore")
            for inner in sorted(path.iterdir()):
                visit(inner, specs, [*above, real])

    try:
        visit(folder, [(folder, always)], [])
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}). Name it in .rayignore") from error
    return sizes


def is_credential(path: Path) -> bool:
    """Return whether a file looks like credentials by its name, in upper or lower case."""
    return PathSpec.from_lines("gitignore", (*SECRETS, *CREDENTIALS)).match_file(str(path).lower())


def _read_ignore_files(folder: Path) -> list[tuple[Path, PathSpec[Any]]]:
    """Return the patterns of each ignore file in a folder, which are relative to it."""
    files = [(folder, _read_patterns(folder / name)) for name in IGNORE_FILES]
    return [(base, PathSpec.from_lines("gitignore", patterns)) for base, patterns in files if patterns]


def _read_patterns(path: Path) -> list[str]:
    """Return lines of an ignore file; none if it is missing. Raises ConfigError for one that Ray cannot read either."""
    try:
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except (UnicodeDecodeError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else f"byte {error.start} is not UTF-8"
        raise ConfigError(
            f"{path}: cannot be read ({why}). Ray reads it when it uploads the folder: save it as UTF-8 text"
        ) from None


def submit_hook(*, working_dir: str | None = None, **_: object) -> None:
    """Exclude credentials and refuse large folders. `ray job submit` calls it first if RAY_JOB_SUBMIT_HOOK names it."""
    os.environ[EXCLUDES_VARIABLE] = ",".join((*ALWAYS_LEFT_OUT, *CREDENTIALS))
    if working_dir and "://" not in working_dir and not working_dir.endswith(".zip"):
        try:
            check(Path(working_dir))
        except ConfigError as error:
            raise SystemExit(f"ConfigError: {error}") from None


def check(folder: Path) -> int:
    """Return the bytes to upload. Raises ConfigError, naming the largest files, for more than Ray accepts."""
    if not folder.is_dir():
        raise ConfigError(f"--working-dir {folder}: no such folder")
    sizes = files(folder)
    total = sum(sizes.values())
    if total > LIMIT_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:NAMED]
        lines = [f"  {sizes[name] / 2**20:8.1f} MiB  {name}" for name in largest]
        raise ConfigError(
            f"--working-dir {folder}: {total / 2**20:.1f} MiB, over the {LIMIT_BYTES >> 20} MiB that Ray accepts. Name "
            "in .rayignore what a job does not need. The largest files:\n" + "\n".join(lines)
        )
    return total
