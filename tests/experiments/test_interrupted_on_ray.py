"""Scripts that a signal ends on a Ray of their own, and that resume on another cluster."""

import json
import os
import signal
import subprocess

import pytest
import ray
from waiting import until_epoch, until_lines

TRAINING = ("--train.epochs", 40, "--train.early-stop-patience", 0, "--train.dtype", "float64", "--model.dropout", 0)
SEARCH = ("--mode", "ray", "--pack", 2, "--data.tickers", "AAPL", "--data.start", "2014-01-01")


@pytest.fixture
def resume(command, ray_cluster, tmp_path):
    """Resumes a run on the cluster that all tests share, to its end."""

    def run(name: str, run_name: str) -> subprocess.CompletedProcess[str]:
        joined = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        argv = command(name, "--runs-dir", tmp_path / "runs", "--name", run_name, "--resume", "--json")
        return subprocess.run(argv, capture_output=True, text=True, timeout=500, check=True, env=joined)

    return run


def test_interrupted_training_in_a_relative_folder_resumes_to_the_metrics_of_one_process(
    command, script, resume, tmp_path
):
    solo = script("train", "--runs-dir", tmp_path / "solo", "--name", "whole", "--json", *TRAINING).stdout
    process = subprocess.Popen(
        command("train", "--name", "cut", "--num-workers", 2, *TRAINING), cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    run = tmp_path / "runs" / "cut"
    until_epoch(process, run, 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert json.loads((run / "record.json").read_text())["status"] == "stopped"
    assert (run / "checkpoints" / "last" / "model.safetensors").exists()
    again = resume("train", "cut")
    assert "epoch 40/40" in again.stderr
    mse = [json.loads(record)["metrics"]["test"]["mse"] for record in (again.stdout, solo)]
    assert mse[0] == pytest.approx(mse[1], rel=1e-9)


def test_terminated_search_resumes_without_running_a_trial_again(command, resume, tmp_path):
    said, run = tmp_path / "said", tmp_path / "runs" / "s"
    argv = command("tune", *SEARCH, "--runs-dir", run.parent, "--name", "s")
    process = subprocess.Popen(argv, stderr=said.open("w"))
    until_lines(process, run / "trials.jsonl", 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143, said.read_text()[-3000:]
    assert json.loads((run / "record.json").read_text())["status"] == "stopped"
    search = json.loads(resume("tune", "s").stdout)["search"]
    assert search["configs"] == 18
    assert search["resumed"] >= 3
    assert search["arms"]["ray"]["seconds"] is None
    ids = [json.loads(line)["id"] for line in (run / "trials.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 18
