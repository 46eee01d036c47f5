"""`sp500 cluster check`: check manifests of KubeRay without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sp500.commands.verb import JsonFlags, verb
from sp500.errors import ConfigError
from sp500.formatting import some
from sp500.jobs.manifests import rules
from sp500.jobs.manifests.manifest import section
from sp500.jobs.manifests.rules import Violation
from sp500.schema import read_documents

BROKEN = 2


class Check(JsonFlags):
    """Check RayClusters, RayJobs and RayServices against rules of this project.

    Nothing is sent. Documents of other kinds are skipped. Types, unknown fields and the operator's own rules are left
    to the API server and the operator. Exit code 2: a rule is broken.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """YAML files; - reads stdin: kubectl kustomize cluster/overlays/gpu | sp500 cluster check -"""


@dataclass(frozen=True)
class CheckedDocument:
    """One document: where it is from, and the rules that it breaks."""

    file: str
    kind: str
    name: str
    violations: tuple[Violation, ...]


def _check(flags: Check) -> tuple[str, int]:
    documents = [document for file in flags.files for document in check(file)]
    if not documents:
        files = " ".join(map(str, flags.files)) or "no file given"
        raise ConfigError(f"{files}: expected YAML with {', '.join(rules.KINDS)}")
    code = BROKEN if any(document.violations for document in documents) else 0
    if flags.json_output:
        return json.dumps({"documents": [asdict(document) for document in documents]}), code
    return format_violations(documents), code


def check(file: Path) -> Iterator[CheckedDocument]:
    """Yield the documents of a file that the rules know. Raises ConfigError for a file that is not readable YAML."""
    path = Path("/dev/stdin") if file == Path("-") else file
    for document in read_documents(path, "manifest"):
        if isinstance(document, dict) and document.get("kind") in rules.KINDS:
            name = str(section(document, "metadata").get("name", ""))
            yield CheckedDocument(str(file), document["kind"], name, tuple(rules.violations(document)))


def format_violations(documents: Sequence[CheckedDocument]) -> str:
    """Return a line per broken rule, and one with their number."""
    lines = [
        f"{document.file}: {document.kind} {document.name}: {violation}"
        for document in documents
        for violation in document.violations
    ]
    return "\n".join([*lines, f"{some(len(documents), 'document')} checked, {some(len(lines), 'broken rule')}"])


main = verb("cluster check", Check, _check)
