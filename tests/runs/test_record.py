"""Records: plain data that survives its file and a newer version, and says where and from what a run was made."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import torch
from pydantic import ValidationError

import sp500
from sp500.runs.record import EpochMetrics, Machine, RunRecord, Seconds, machine, process_start, versions

RECORD = RunRecord(
    name="run",
    experiment="train",
    arm="solo",
    status="ok",
    config={"data": {"window": 30}},
    fingerprint="0123456789abcdef",
    seed=3,
    started=datetime(2024, 1, 2, tzinfo=UTC),
    finished=datetime(2024, 1, 3, tzinfo=UTC),
    seconds=Seconds(setup=1, train=1 / 3, total=3),
    machine=Machine(cpus=2, memory_bytes=2**34, threads=1, system="Linux"),
    versions={"python": "3.11"},
    metrics={"test": {"mse": 0.1 + 0.2, "confusion_matrix": [[1, 2], [3, 4]], "roc_auc": None}},
)

KEYS = {
    "name", "experiment", "arm", "status", "reason", "config", "fingerprint", "seed", "started", "finished", "seconds",
    "samples", "samples_per_second", "peak_memory_bytes", "num_workers", "device", "machine", "versions", "data",
    "metrics",
}  # fmt: skip


def test_record_survives_its_file_to_the_bit():
    assert RunRecord.model_validate_json(RECORD.model_dump_json()) == RECORD


def test_record_has_the_keys_that_other_programs_rely_on():
    written = RECORD.model_dump(mode="json")
    assert written.keys() >= KEYS
    assert written["seconds"].keys() >= {"setup", "train", "total"}


def test_record_of_a_newer_version_is_read():
    newer = {**RECORD.model_dump(mode="json"), "carbon": 3}
    assert RunRecord.model_validate(newer) == RECORD


@pytest.mark.parametrize("change", [{"status": "unknown"}, {"seed": "three"}, {"started": "yesterday"}])
def test_record_of_wrong_type_is_refused_by_key(change):
    with pytest.raises(ValidationError, match=next(iter(change))):
        RunRecord.model_validate({**RECORD.model_dump(), **change})


def test_record_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        RECORD.seed = 4


@pytest.mark.parametrize("loss", [0.1 + 0.2, 5e-324, 1.7e308, 1 / 3])
def test_loss_survives_its_line_to_the_bit(loss):
    epoch = EpochMetrics(epoch=1, train_loss=loss, valid_loss=loss, samples=1, seconds=0.0)
    assert EpochMetrics.model_validate_json(epoch.model_dump_json()) == epoch


def test_machine_is_the_part_of_this_one_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    found = machine(1, {"CPU": 4.0})
    assert found.cpus == 1
    assert found.memory_bytes == psutil.virtual_memory().total
    assert (found.threads, found.cluster) == (1, {"CPU": 4.0})
    assert platform.system() in found.system
    assert machine(0).threads == 1


def test_versions_are_those_installed():
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == metadata.version("torch")
    assert torch.__version__.partition("+")[0] == found["torch"].partition("+")[0]  # PyPI's build: 2.13.0, with +cu130
    assert {"numpy", "pandas", "ray", "sp500", "git"} <= found.keys()


def test_version_holds_the_commit_and_whether_the_tree_was_changed():
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(sp500.__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--verify", "--quiet", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    expected = commit[:12] + ("-dirty" if changed else "") if commit else "none"
    assert versions()["git"] == expected


def test_process_started_before_now_and_after_the_machine():
    booted = datetime.fromtimestamp(math.floor(psutil.boot_time()), UTC)
    assert booted <= process_start() < datetime.now(UTC)
