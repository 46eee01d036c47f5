"""`sp500 jobs render ...`: finds the verb, which does the rest.

A verb is a line in VERBS and a function `main(argv) -> int` of a module, imported when it is called, so that help is
instant.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import sys
from collections.abc import Callable, Sequence

from sp500.console.streams import open_closed_streams, write_stdout
from sp500.version import __version__

# Words of a verb: its module in sp500.commands (with :FUNCTION, if that is not `main`), and what it does.
VERBS = {
    "prepare": ("experiments.prepare", "Check prices, and show what a model would be trained on."),
    "train": ("experiments.train", "Train one model, here or on Ray, and judge it next to naive forecasts."),
    "tune": ("experiments.tune", "Search hyper-parameters: one after another, packed, or under Ray Tune."),
    "walk-forward": ("experiments.walk_forward", "Train one config again for each year, and judge it on that year."),
    "scale": ("experiments.scale", "Train on growing datasets, three ways under one memory budget."),
    "compare": ("experiments.compare", "Write the report on all runs of a folder."),
    "jobs submit": (
        "submission.submit",
        "Queue one job or many: on this machine, a Ray cluster or Kubernetes.",
    ),
    "jobs list": ("jobs.list", "List the jobs of the queue."),
    "jobs status": ("jobs.status", "Show a job's state, the reason for it, its progress and its last lines."),
    "jobs logs": ("jobs.actions:logs", "Print a job's output, or follow it."),
    "jobs wait": ("jobs.actions:wait", "Wait until jobs have ended, and return their exit code."),
    "jobs stop": ("jobs.actions:stop", "Stop jobs."),
    "jobs rerun": ("jobs.actions:rerun", "Queue a job again, as it was."),
    "jobs delete": ("jobs.actions:delete", "Delete ended jobs from the queue."),
    "jobs manage": ("jobs.manage", "Run the queue's manager in the foreground; submit starts one by itself."),
    "jobs render": (
        "submission.render",
        "Print the manifests of a job on Kubernetes, after checking them.",
    ),
    "jobs forecast": ("forecast", "Forecast time, speed-up and cost of more workers, from your own runs."),
    "jobs rehearse": (
        "submission.rehearse",
        "Start a local Ray cluster with the nodes of a manifest, or stop it.",
    ),
    "cluster deploy": (
        "cluster.deploy",
        "Apply an overlay to a cluster, and wait until Ray is ready.",
    ),
    "cluster check": ("cluster.check", "Check KubeRay manifests, without a cluster."),
    "cluster upload-data": ("cluster.transfer:upload_data", "Copy a folder to the cluster's data claim."),
    "cluster fetch-results": ("cluster.transfer:fetch_results", "Copy ended runs from the cluster's claim."),
    "runs list": ("runs:list_runs", "List the runs of a folder."),
    "runs show": ("runs:show", "Show what a run found."),
    "runs rm": ("runs:remove", "Delete runs."),
    "runs fetch": ("runs_fetch", "Copy a run from its archive."),
    "judge": ("judge", "Judge forecasts that were made elsewhere, next to the runs."),
    "importance": ("importance", "Measure what the features and days of a trained model of prices are worth."),
    "serve": ("serving.serve", "Serve a trained run or a model over HTTP."),
    "models list": ("models:list_models", "List models, their versions and the runs that serve them."),
    "models promote": (
        "models:promote",
        "Let a run serve a model: all requests, a share (canary), or only for the log (shadow).",
    ),
    "models rollback": (
        "models:rollback",
        "End a model's canary and shadow, or let its previous champion serve again.",
    ),
    "models score": ("models:score", "Score served forecasts against the prices that followed."),
    "mlflow sync": ("mlflow_sync", "Copy runs to MLflow."),
    "mcp": (
        "agent.mcp",
        "Offer the queue to an agent: a Model Context Protocol server on stdin and stdout.",
    ),
    "doctor": ("doctor", "Check this machine and its clusters, and say what to do."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the verb's exit code; 2 for an unknown verb, 130 if Ctrl-C comes before the verb can handle it."""
    open_closed_streams()
    try:
        return _dispatch(argv)
    except KeyboardInterrupt:
        print("interrupted before anything was done", file=sys.stderr)
        return 130


def _dispatch(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    for verb in VERBS:
        own = verb.split()
        if words[: len(own)] == own:
            return load(verb)(words[len(own) :])
    if words[:1] == ["--version"]:
        return write_stdout(__version__)
    prefix = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    matches = {verb: summary for verb, (_, summary) in VERBS.items() if verb.split()[: len(prefix)] == prefix}
    if matches and words[len(prefix) :] in ([], ["--help"], ["-h"]):
        return write_stdout(_listing(matches))
    print(_unknown(prefix or words[:1]), file=sys.stderr)
    return 2


def load(verb: str) -> Callable[[Sequence[str]], int]:
    """Import the function of a verb, which returns the exit code."""
    module, _, function = VERBS[verb][0].partition(":")
    main: Callable[[Sequence[str]], int] = getattr(
        importlib.import_module(f"sp500.commands.{module}"), function or "main"
    )
    return main


def _listing(verbs: dict[str, str]) -> str:
    width = max(map(len, verbs))
    lines = [f"  sp500 {verb:<{width}}  {summary}" for verb, summary in verbs.items()]
    return "\n".join(["usage: sp500 COMMAND [flags]; sp500 COMMAND --help shows the flags", "", *lines])


def _unknown(words: list[str]) -> str:
    command = " ".join(words[:2])
    near = difflib.get_close_matches(command.replace("_", "-"), VERBS, n=1, cutoff=0.8)
    if not near:  # a command's last word, to which arguments may belong
        last = difflib.get_close_matches(words[0], {verb.split()[-1] for verb in VERBS}, n=1, cutoff=0.8)
        near = [verb for verb in VERBS if verb.split()[-1] in last]
    meant = " or ".join(f"sp500 {verb}" for verb in near)
    hint = f"did you mean {meant}?" if near else f"commands: {', '.join(VERBS)}"
    return f"sp500 {command}: no such command; {hint}"


if __name__ == "__main__":
    sys.exit(main())
