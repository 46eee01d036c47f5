"""`sp500 models`: the models of a runs folder, here or on a cluster.

With --on kuberay the same verb runs in a pod of the cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import tyro
from pydantic import Field, model_validator

from sp500 import errors
from sp500.commands.cluster import transfer
from sp500.commands.verb import Main, RunsFlags
from sp500.config import RUN_NAME
from sp500.console import arguments
from sp500.console.output import run_command
from sp500.errors import ConfigError, ResourcesError, SP500Error
from sp500.formatting import percent
from sp500.jobs.cluster import runs_claim
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.runs_claim import RunsClaim
from sp500.serving.registry import DEFAULT, Model, Registry

MEMORY = "1Gi"
"""Memory of the pod: it loads the run that is promoted, as the servers will."""
ELSEWHERE = ("--on", "--namespace", "--context", "--runs-dir")
"""Flags that say where, and not what."""
POD_ERROR = re.compile(r"kubectl exec: (?P<kind>\w+): (?P<text>.*)\ncommand terminated with exit code \d+", re.DOTALL)
"""The error of the verb in the pod."""


class ModelFlags(RunsFlags):
    """Flags of every verb."""

    on: Literal["local", "kuberay"] = "local"
    """kuberay: the models of a cluster's runs claim, through a pod that is deleted afterwards."""
    namespace: str = "sp500"
    """Namespace of --on kuberay."""
    context: str | None = None
    """Context of your kubeconfig for --on kuberay. Default: the current one."""


class List(ModelFlags):
    """List models, their versions and the runs that serve them."""


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
            raise ValueError("--canary and --shadow: use one of them")
        return self


class Rollback(ModelFlags):
    """End a model's canary and shadow or, if it has none, let the previous champion serve again."""

    model: str = DEFAULT
    """The model."""


class Score(ModelFlags):
    """Score served forecasts against the prices that followed, next to the naive forecasts."""

    model: str = DEFAULT
    """The model."""
    source: str | None = None
    """Source of the prices: bundled | yfinance | FILE. Default: the source that the champion was trained on."""


def _list(flags: List) -> tuple[Mapping[str, object], str]:
    registry = Registry(flags.runs_dir)
    models = [registry.read(name) for name in registry.names()]
    text = "\n".join(line for model in models for line in lines(model))
    return {"models": [model.model_dump(mode="json") for model in models]}, text or f"no models in {registry.folder}"


def lines(model: Model) -> list[str]:
    """Return the model's name, and a line for each version."""
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


def _check_name(flags: Promote) -> str:
    """Return the run's name. It is checked before it becomes part of a path, here or in a pod."""
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


def _rollback(flags: Rollback) -> tuple[Mapping[str, object], str]:
    model = Registry(flags.runs_dir).rollback(flags.model)
    return model.model_dump(mode="json"), "\n".join(lines(model))


def _score(flags: Score) -> tuple[Mapping[str, object], str]:
    from sp500.data.sources import load
    from sp500.runs.store import Run
    from sp500.serving import answers, scores

    registry = Registry(flags.runs_dir)
    champion = registry.read(flags.model).champion
    folder = flags.runs_dir / (champion.run if champion else "")
    record = Run(folder).record() if champion else None
    if record is None:
        raise ConfigError(f"model {flags.model} has no champion in {registry.folder}; see sp500 models list")
    log = answers.read(registry.folder / answers.FOLDER / flags.model)
    config = record.best_config(folder)
    data = config.data.model_copy(update={"end": None, **({"source": flags.source} if flags.source else {})})
    rows = scores.score_answers(log, load(data).close, threshold=config.eval.threshold, horizon=data.horizon)
    return {"model": flags.model, "runs": rows}, "\n".join(map(_line, rows))


def _line(row: dict[str, Any]) -> str:
    text = f"{row['version']}  {row['run']} ({row['role']}): {row['judged']} of {row['answers']} answers judged"
    text += f", {row['other_prices']} were for other prices than the source's" if row["other_prices"] else ""
    if not row["judged"]:
        return text
    gain = row["improvement"]
    low, high = (percent(gain[end], sign=True) if gain[end] is not None else "unknown" for end in ("low", "high"))
    error = row[gain["metric"]]
    return (
        f"{text}; {gain['metric']} {error:.6g}, {percent(gain['value'], sign=True)} against naive '{gain['over']}' "
        f"(95% interval for these days {low} to {high})"
    )


F = TypeVar("F", bound=ModelFlags)


def _verb(
    name: str,
    kind: type[F],
    act: Callable[[F], tuple[Mapping[str, object], str]],
    sent: Callable[[F], str] | None = None,
) -> Main:
    """Return the `main` of a verb that prints plain data or text. `sent` names the local run that a pod needs."""

    def main(argv: Sequence[str]) -> int:
        """Run the verb here or in a pod, and return the exit code."""

        def run() -> tuple[str, int]:
            flags = arguments.parse(kind, argv, f"sp500 {name}")
            if flags.on == "kuberay":
                return _in_a_pod(flags, name, argv, sent(flags) if sent else ""), 0
            plain, text = act(flags)
            return json.dumps(plain, indent=1) if flags.json_output else text, 0

        return run_command(run, only_json="--json" in argv)

    return main


def _in_a_pod(flags: ModelFlags, name: str, argv: Sequence[str], run: str) -> str:
    kubectl = Kubectl(flags.namespace, flags.context)
    words = ["python", "-m", "sp500.cli", *name.split(), *_without_place(argv), "--runs-dir", runs_claim.MOUNT]
    pod = transfer.pod(
        kubectl,
        transfer.ClusterFlags(context=flags.context),
        runs_claim.CLAIM,
        runs_claim.MOUNT,
        read_only=False,
        memory=MEMORY,
        serving=True,
    )
    with pod as running:
        if run and (flags.runs_dir / run).is_dir():
            sent = RunsClaim(kubectl, running, flags.runs_dir).send(run)
            transfer.say(f"run {run} {'is sent' if sent else 'exists already'}")
        try:
            return kubectl.execute(running, *words).rstrip()
        except ResourcesError as error:
            raise _parse_error(error) from error


def _parse_error(error: ResourcesError) -> SP500Error:
    """Return the error of the verb in the pod, as it would be here; `error` itself if the transfer failed."""
    match = POD_ERROR.fullmatch(str(error))
    kind = getattr(errors, match["kind"], None) if match else None
    return kind(match["text"]) if match and isinstance(kind, type) and issubclass(kind, SP500Error) else error


def _without_place(argv: Sequence[str]) -> list[str]:
    rest, words = list[str](), iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag.replace("_", "-") not in ELSEWHERE:
            rest.append(word)
        elif not equals:
            next(words, None)
    return rest


list_models = _verb("models list", List, _list)
promote = _verb("models promote", Promote, _promote, sent=_check_name)
rollback = _verb("models rollback", Rollback, _rollback)
score = _verb("models score", Score, _score)
