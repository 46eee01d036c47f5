"""Flags that all verbs of `sp500 models` share, and how they end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro
from pydantic import Field

from sp500 import errors
from sp500.commands import folders
from sp500.commands.cluster import cluster_flags
from sp500.config import Frozen
from sp500.console import arguments
from sp500.console.output import run_command
from sp500.errors import ResourcesError, SP500Error
from sp500.jobs.cluster import runs_claim
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.runs_claim import RunsClaim

MEMORY = "1Gi"
"""Memory of the pod: it loads the run that is promoted, as the servers will."""
ELSEWHERE = ("--on", "--namespace", "--context", "--runs-dir")
"""Flags that say where, and not what."""
POD_ERROR = re.compile(r"kubectl exec: (?P<kind>\w+): (?P<text>.*)\ncommand terminated with exit code \d+", re.DOTALL)
"""The error of the verb in the pod."""


class ModelFlags(Frozen):
    """Flags of every verb."""

    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder of the runs. $SP500_RUNS_DIR sets another default."""
    on: Literal["local", "kuberay"] = "local"
    """kuberay: the models of a cluster's runs claim, through a pod that is deleted afterwards."""
    namespace: str = "sp500"
    """Namespace of --on kuberay."""
    context: str | None = None
    """Context of your kubeconfig for --on kuberay. Default: the current one."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout."""


F = TypeVar("F", bound=ModelFlags)


def run_verb(
    kind: type[F],
    argv: Sequence[str],
    name: str,
    act: Callable[[F], tuple[Mapping[str, object], str]],
    sent: Callable[[F], str] = lambda _: "",
) -> int:
    """Parse, act, print plain data or text, and return the exit code.

    With --on kuberay the same verb runs in a pod of the cluster; the local run that `sent` names goes there first.
    """

    def run() -> tuple[str, int]:
        flags = arguments.parse(kind, argv, f"sp500 {name}")
        if flags.on == "kuberay":
            return _in_a_pod(flags, name, argv, sent(flags)), 0
        plain, text = act(flags)
        return json.dumps(plain, indent=1) if flags.json_output else text, 0

    return run_command(run, only_json="--json" in argv)


def _in_a_pod(flags: ModelFlags, name: str, argv: Sequence[str], run: str) -> str:
    kubectl = Kubectl(flags.namespace, flags.context)
    words = ["python", "-m", "sp500.cli", *name.split(), *_without_place(argv), "--runs-dir", runs_claim.MOUNT]
    pod = cluster_flags.pod(
        kubectl,
        cluster_flags.ClusterFlags(context=flags.context),
        runs_claim.CLAIM,
        runs_claim.MOUNT,
        read_only=False,
        memory=MEMORY,
        serving=True,
    )
    with pod as running:
        if run and (flags.runs_dir / run).is_dir():
            sent = RunsClaim(kubectl, running, flags.runs_dir).send(run)
            cluster_flags.say(f"run {run} {'is sent' if sent else 'is there already'}")
        try:
            return kubectl.execute(running, *words).rstrip()
        except ResourcesError as error:
            raise _parse_error(error) from error


def _parse_error(error: ResourcesError) -> SP500Error:
    """The error of the verb in the pod, as it would be here; `error` itself where it is of the way there."""
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
