"""`sp500 models rollback`: what answered before answers again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sp500.commands.models.list import lines
from sp500.commands.models.model_flags import ModelFlags, run_verb
from sp500.serving.registry import DEFAULT, Registry


class Rollback(ModelFlags):
    """End a model's canary and shadow or, where it has none, let the previous champion serve again."""

    model: str = DEFAULT
    """The model."""


def main(argv: Sequence[str]) -> int:
    """Roll back and return the exit code."""
    return run_verb(Rollback, argv, "models rollback", _rollback)


def _rollback(flags: Rollback) -> tuple[Mapping[str, object], str]:
    model = Registry(flags.runs_dir).rollback(flags.model)
    return model.model_dump(mode="json"), "\n".join(lines(model))
