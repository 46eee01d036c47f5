"""Contexts of kubeconfigs, as kubectl reads them: of several files the first that sets something counts."""

from __future__ import annotations

from collections.abc import Mapping
from os import pathsep
from pathlib import Path

import yaml

from sp500.errors import ConfigError
from sp500.jobs.manifests.manifest import Document, items, section

NAMESPACE = "sp500"


def files(environment: Mapping[str, str]) -> list[Path]:
    """Return the kubeconfigs that KUBECONFIG names, absolute; none if it is not set."""
    return [Path(file).expanduser().absolute() for file in environment.get("KUBECONFIG", "").split(pathsep) if file]


def select_context(environment: Mapping[str, str], name: str | None = None) -> tuple[str | None, str]:
    """Return name and namespace of the context `name`, or of the current one; the name is None without a kubeconfig.

    If no namespace is set, it is the one that scripts/deploy puts the claims into, as for the verbs of a cluster.
    Raises ConfigError for a name that no file has.
    """
    kubeconfigs = [
        content for file in files(environment) or [Path.home() / ".kube" / "config"] if (content := _read(file))
    ]
    current = name or next((str(file["current-context"]) for file in kubeconfigs if file.get("current-context")), None)
    # Last to first: if two have one name, kubectl uses the first.
    entries = [entry for file in reversed(kubeconfigs) for entry in items(file.get("contexts"))[::-1]]
    contexts = {str(entry.get("name")): section(entry, "context") for entry in entries}
    if name and kubeconfigs and name not in contexts:
        raise ConfigError(f"--context {name}: no kubeconfig has it; there are: {', '.join(sorted(contexts)) or 'none'}")
    return current, str(section(contexts, str(current)).get("namespace") or NAMESPACE)


def _read(file: Path) -> Document:
    """Return a kubeconfig; an empty one if the file is missing or invalid, which its client will report."""
    try:
        kubeconfig = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return kubeconfig if isinstance(kubeconfig, dict) else {}
