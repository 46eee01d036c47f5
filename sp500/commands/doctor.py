"""`sp500 doctor`: one line per check of this machine and its clusters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tyro

from sp500.commands import folders
from sp500.commands.verb import verb
from sp500.config import Frozen
from sp500.doctor import check, kubernetes_cluster, machine, ray_cluster, versions
from sp500.errors import ConfigError
from sp500.jobs.client import state_folder
from sp500.jobs.kuberay import contexts
from sp500.jobs.target import On

HOME, NOWHERE = "home folder", "/nonexistent"


class Doctor(Frozen):
    """Check this machine and its clusters, one line per check: ok, or what to do.

    Exit code 1: something is wrong. 2: torchvision is of another build than torch.
    """

    on: On | None = None
    """Place where you want to run jobs. If it cannot be used, that is an error; other clusters are not checked."""
    address: str | None = None
    """Address of a Ray cluster, http://HOST:8265. Default: $RAY_ADDRESS."""
    context: str | None = None
    """Context of your kubeconfig. Default: the current one."""
    namespace: str | None = None
    """Namespace that jobs run in. Default: the context's, as for `sp500 jobs submit`."""
    runs_dir: Path | None = None
    """Folder of all runs. Default: $SP500_RUNS_DIR, or runs."""
    state_dir: Path | None = None
    """Folder of the queue. Default: $XDG_STATE_HOME/sp500, or ~/.local/state/sp500."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout: {checks: [{name, state, found, advice}], ok}."""


def _namespace(flags: Doctor, environment: Mapping[str, str]) -> str:
    try:
        return flags.namespace or contexts.select_context(environment, flags.context)[1]
    except ConfigError:  # the check of the context reports it
        return "default"


def _check(flags: Doctor) -> tuple[str, int]:
    checks = check.run_probes(probes(flags))
    text = json.dumps(check.plain(checks), indent=1) if flags.json_output else check.text(checks)
    return text, check.exit_code(checks)


def probes(flags: Doctor) -> list[check.Probe]:
    """Return all checks, in the order that they are printed."""
    environment, (home, faults) = os.environ, _find_home()
    namespace = _namespace(flags, environment)
    runs = flags.runs_dir or folders.runs(environment)
    ray = versions.find_package("ray")
    return [
        *versions.probes(),
        (HOME, lambda: faults),
        *machine.probes(runs, flags.state_dir or state_folder(environment), environment),
        *ray_cluster.probes(
            flags.address, environment, home, ray.version if ray else "", wanted=_is_wanted(flags.on, "ray")
        ),
        kubernetes_cluster.probe(environment, home, flags.context, namespace, wanted=_is_wanted(flags.on, "kuberay")),
    ]


def _find_home() -> tuple[Path, list[check.Check]]:
    """Return the user's home folder, and what is wrong with it. Without one the other checks look at an empty place."""
    advice = "set HOME to a folder that this user can write to"
    try:
        home = Path.home()
    except RuntimeError:  # a container's user often has neither a name nor HOME
        os.environ["HOME"] = NOWHERE
        return Path(NOWHERE), [check.wrong(HOME, f"user {os.getuid()} has none", advice)]
    if os.access(home, os.R_OK | os.X_OK):
        return home, []
    return home, [check.wrong(HOME, f"{home} cannot be entered by user {os.getuid()}", advice)]


def _is_wanted(on: str | None, cluster: str) -> bool | None:
    return None if on is None else on == cluster


main = verb("doctor", Doctor, _check)
