"""`sp500 models promote`: a run answers for a model from now on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import tyro
from pydantic import Field, model_validator

from sp500.commands.models.list import lines
from sp500.commands.models.model_flags import ModelFlags, run_verb
from sp500.config import RUN_NAME
from sp500.errors import ConfigError
from sp500.serving.registry import DEFAULT, Registry


class Promote(ModelFlags):
    """Let a run serve a model. Servers follow within seconds, and keep what they have if the run does not load."""

    run: Annotated[str, tyro.conf.Positional]
    """The run."""
    model: str = DEFAULT
    """The model."""
    canary: float | None = Field(None, gt=0, lt=1)
    """Let it answer this share of the requests."""
    shadow: bool = False
    """Log its answers, but do not send them."""
    trust_source: bool = False
    """Run the Python files in the run's folder (source/), even if no command on this machine has used them. Only if you
    trust the run."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Promote:
        if self.canary and self.shadow:
            raise ValueError("--canary and --shadow: give one of them")
        return self


def main(argv: Sequence[str]) -> int:
    """Promote the run and return the exit code."""
    return run_verb(Promote, argv, "models promote", _promote, sent=_check_name)


def _check_name(flags: Promote) -> str:
    """The run's name. It is checked before it becomes part of a path, here or in a pod."""
    if not RUN_NAME.fullmatch(flags.run):
        raise ConfigError(f"{flags.run}: expected the name of a run in {flags.runs_dir}")
    return flags.run


def _promote(flags: Promote) -> tuple[Mapping[str, object], str]:
    _check_name(flags)
    from sp500.serving.models import interface
    from sp500.serving.predictor import Predictor

    predictor = Predictor(flags.runs_dir / flags.run, trust_source=flags.trust_source)
    model = Registry(flags.runs_dir).promote(
        flags.model,
        flags.run,
        predictor.recipe.weights_sha256,
        interface(predictor),
        canary=flags.canary,
        shadow=flags.shadow,
    )
    return model.model_dump(mode="json"), "\n".join(lines(model))
