"""`sp500 models list`: the models of a runs folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sp500.commands.models.model_flags import ModelFlags, run_verb
from sp500.serving.registry import Model, Registry


class List(ModelFlags):
    """List models, their versions and the runs that serve them."""


def main(argv: Sequence[str]) -> int:
    """List the models and return the exit code."""
    return run_verb(List, argv, "models list", _list)


def _list(flags: List) -> tuple[Mapping[str, object], str]:
    registry = Registry(flags.runs_dir)
    models = [registry.read(name) for name in registry.names()]
    text = "\n".join(line for model in models for line in lines(model))
    return {"models": [model.model_dump(mode="json") for model in models]}, text or f"no models in {registry.folder}"


def lines(model: Model) -> list[str]:
    """The model's name, and a line for each version."""
    rows = [model.name]
    for version in model.versions:
        roles = ["champion"] if model.champion == version else []
        roles += (
            [f"canary, {model.canary.share:.0%}"] if model.canary and model.canary.version == version.version else []
        )
        roles += ["shadow"] if model.shadow == version.version else []
        when = f"{version.promoted:%Y-%m-%d %H:%M}"
        row = f"  {version.version}  {version.run}  promoted {when} by {version.by}  {' and '.join(roles)}"
        rows.append(row.rstrip())
    return rows
