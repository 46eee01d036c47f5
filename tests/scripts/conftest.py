"""A cluster that is folders, and the scripts' Python beside it."""

import json
import os
import select
import signal
import sys
import sysconfig
from pathlib import Path

import forks
import pytest

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_kubectl.py")


class Cluster:
    """Folders behind a fake kubectl, and the commands that the scripts start."""

    def __init__(self, folder, work):
        self.folder, self.work = folder, work
        self.data, self.runs = folder / "claims/sp500-data", folder / "claims/sp500-runs"
        for path in (self.data, self.runs, folder / "pods", folder / "bin", work):
            path.mkdir(parents=True)
        kubectl = folder / "bin/kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE}" "$@"\n')
        kubectl.chmod(0o755)
        head = {"image": "registry.example/sp500:2.60.0", "imagePullPolicy": "Never"}
        pod = {"containers": [head], "imagePullSecrets": [{"name": "registry"}]}
        self.write("raycluster", {"spec": {"headGroupSpec": {"template": {"spec": pod}}}})
        self.write("events", {"items": []})
        (folder / "objects/Namespace").mkdir(parents=True)
        self.write("objects/Namespace/sp500", {"kind": "Namespace", "metadata": {"name": "sp500"}})
        (folder / "operator").touch()

    def write(self, name, document):
        (self.folder / f"{name}.json").write_text(json.dumps(document))

    def fault(self, name):
        (self.folder / "fault").write_text(name)

    @property
    def environment(self):
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        packages = sysconfig.get_path("purelib")
        own = {"PATH": path, "FAKE_CLUSTER": str(self.folder), "FAKE_PACKAGES": packages, "PYTHONPATH": str(ROOT)}
        return {**os.environ, **own}

    def start(self, *words):
        return forks.Script(["sp500", "cluster", *map(str, words)], cwd=self.work, env=self.environment)

    def call(self, *words):
        """Exit code, stdout and stderr."""
        done = self.start(*words).finish()
        return done.returncode, done.stdout, done.stderr

    def calls(self, verb):
        return [line for line in (self.folder / "log").read_text().splitlines() if line.startswith(verb)]

    def terminated_in_transfer(self, *words):
        """Exit code of a command that gets SIGTERM while the other side reads or writes its archive."""
        self.fault("hang")
        os.mkfifo(self.folder / "reached")
        reached = os.open(self.folder / "reached", os.O_RDONLY | os.O_NONBLOCK)
        process = self.start(*words)
        assert select.select([reached], [], [], 60)[0]
        os.close(reached)
        process.send_signal(signal.SIGTERM)
        return process.wait()

    @property
    def pods(self):
        return [path.name for path in (self.folder / "pods").iterdir()]


def files(folder):
    """Path -> content of all files below, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path / "cluster", tmp_path / "work")


@pytest.fixture
def content():
    return files
