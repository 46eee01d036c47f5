"""`sp500 models list`: the models of a runs folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp500.commands.models.model_flags import ModelFlags, verb
from sp500.serving.registry import Model, Registry


class List(ModelFlags):
    """Show every model: its versions, and which of them answers."""


def main(argv: Sequence[str]) -> int:
    """List, to the exit code."""
    return verb(List, argv, "models list", _listed)


def _listed(flags: List) -> tuple[dict[str, Any], str]:
    registry = Registry(flags.runs_dir)
    models = [registry.read(name) for name in registry.names()]
    text = "\n".join(line for model in models for line in lines(model))
    return {"models": [one.model_dump(mode="json") for one in models]}, text or f"no models in {registry.folder}"


def lines(model: Model) -> list[str]:
    """The model's name, and a line for each version."""
    found = [model.name]
    for one in model.versions:
        roles = ["champion"] if model.champion == one else []
        roles += [f"canary, {model.canary.share:.0%}"] if model.canary and model.canary.version == one.version else []
        roles += ["shadow"] if model.shadow == one.version else []
        when = f"{one.promoted:%Y-%m-%d %H:%M}"
        found.append(f"  {one.version}  {one.run}  promoted {when} by {one.by}  {' and '.join(roles)}".rstrip())
    return found
