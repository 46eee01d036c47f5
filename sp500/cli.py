"""`sp500 jobs render ...`: finds the verb, which does the rest.

A verb is a line in VERBS and a module with `main(argv) -> int`, imported when it is called, so that help is instant.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from sp500 import __version__

# Words of a verb: its module in sp500.commands, and what it does.
VERBS = {
    "jobs submit": (
        "submission.submit",
        "Queue a job, or many, here, on a Ray cluster or on Kubernetes.",
    ),
    "jobs list": ("jobs.list", "Show the queue."),
    "jobs status": ("jobs.status", "Show a job's state and the reason for it."),
    "jobs logs": ("jobs.logs", "Print what a job printed, or follow it."),
    "jobs wait": ("jobs.wait", "Wait for jobs, and end with their exit code."),
    "jobs stop": ("jobs.stop", "End jobs."),
    "jobs rerun": ("jobs.rerun", "Queue a job once more."),
    "jobs delete": ("jobs.delete", "Remove ended jobs from the queue."),
    "jobs manage": ("jobs.manage", "Manage the queue in the foreground; submit starts this by itself."),
    "jobs render": (
        "submission.render",
        "Print the manifests of a job on Kubernetes, after checking them.",
    ),
    "jobs forecast": ("forecast", "Print what more workers would buy, from your own runs."),
    "jobs rehearse": (
        "submission.rehearse",
        "Start a local Ray cluster of a manifest's shape, or end it.",
    ),
    "cluster deploy": (
        "cluster.deploy",
        "Bring an overlay onto a cluster, and wait until Ray is ready.",
    ),
    "cluster check": ("cluster.check", "Check manifests of KubeRay against every rule, without a cluster."),
    "cluster upload-data": ("cluster.upload_data", "Put a folder onto the cluster's data claim."),
    "cluster fetch-results": ("cluster.fetch_results", "Bring ended runs from the cluster's claim."),
    "runs fetch": ("runs.fetch", "Bring a run from the archive that it was copied to."),
    "serve": ("serving.serve", "Answer over HTTP with a trained run or a model."),
    "models list": ("models.list", "Show the models that runs were promoted for."),
    "models promote": ("models.promote", "Let a run answer for a model: all requests, a share, or for the log."),
    "models rollback": ("models.rollback", "Let the champion before answer again."),
    "models score": ("models.score", "Judge the answers that were given, by the prices since."),
    "mlflow sync": ("mlflow_sync", "Mirror the runs in MLflow."),
    "mcp": (
        "agent.mcp",
        "Serve the queue to an agent, by the Model Context Protocol on stdin and stdout.",
    ),
    "doctor": ("doctor", "Say what is wrong on this machine and with its clusters."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The verb's exit code; 2 for an unknown verb, 130 where Ctrl-C comes before the verb can handle it."""
    try:
        return _dispatch(argv)
    except KeyboardInterrupt:
        print("interrupted before anything was done", file=sys.stderr)
        return 130


def _dispatch(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    for verb, (module, _) in VERBS.items():
        own = verb.split()
        if words[: len(own)] == own:
            return int(importlib.import_module(f"sp500.commands.{module}").main(words[len(own) :]))
    if words[:1] == ["--version"]:
        print(__version__)
        return 0
    prefix = [word for word in words if not word.startswith("-")]
    matches = {verb: summary for verb, (_, summary) in VERBS.items() if verb.split()[: len(prefix)] == prefix}
    if matches and words[len(prefix) :] in ([], ["--help"], ["-h"]):
        try:
            print(_listing(matches), flush=True)
        except BrokenPipeError:  # the reader (head, less) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    print(_unknown(" ".join(prefix) or words[0]), file=sys.stderr)
    return 2


def _listing(verbs: dict[str, str]) -> str:
    width = max(map(len, verbs))
    lines = [f"  sp500 {verb:<{width}}  {summary}" for verb, summary in verbs.items()]
    return "\n".join(["usage: sp500 VERB [flags]; sp500 VERB --help shows its flags", "", *lines])


def _unknown(verb: str) -> str:
    near = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.3)
    hint = f"did you mean sp500 {near[0]}?" if near else f"verbs: {', '.join(VERBS)}"
    return f"sp500 {verb}: no such verb; {hint}"


if __name__ == "__main__":
    sys.exit(main())
