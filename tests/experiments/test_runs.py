"""The scripts end to end on real prices: records, resuming, signals, the report."""

import json
import signal

import numpy as np
import pandas as pd
import pytest
import yaml
from forks import Script
from waiting import until_epoch

from sp500 import formatting

PRECISE = ("--train.epochs", 1, "--train.dtype", "float64")  # in float32 rounding may tell two close configs apart
FEW = ("--data.tickers", "AAPL", "--data.start", "2014-01-01")
LONG = ("--train.epochs", 40, "--train.early-stop-patience", 0, "--model.hidden", 128)


@pytest.fixture(scope="module")
def undisturbed(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = script("train", "--runs-dir", folder, "--name", "a", "--json", *LONG)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_leaves_a_stopped_record_and_a_run_that_resumes(command, script, undisturbed, tmp_path, number, code):
    process = Script(command("train", "--runs-dir", tmp_path, "--name", "c", *LONG)[1:])
    until_epoch(process, tmp_path / "c", 3)
    process.send_signal(number)
    assert process.wait(60) == code
    assert json.loads((tmp_path / "c" / "record.json").read_text())["status"] == "stopped"
    done = script("train", "--runs-dir", tmp_path, "--name", "c", "--resume", "--json")
    assert json.loads(done.stdout)["metrics"] == undisturbed["metrics"]


def test_name_that_exists_is_refused_and_resuming_an_ended_run_gives_its_record(script, tmp_path):
    flags = ("--runs-dir", tmp_path, "--name", "once", "--task", "synthetic", "--train.epochs", 2, "--json")
    first = script("train", *flags)
    assert script("train", *flags).returncode == 2
    again = script("train", *flags, "--resume")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    other = script("train", *flags, "--resume", "--train.lr", "0.5")
    assert other.returncode == 2
    assert "other settings than these (train.lr 0.001, not 0.5)" in other.stderr


def test_settings_of_an_earlier_trainer_run_as_they_are(script, tmp_path):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((600, 5, 3)).astype(np.float32)
    y = (x[:, -1, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "arrays.npz", X_train=x[:500], y_train=y[:500], X_test=x[500:], y_test=y[500:])
    settings = {
        "data": {
            "npz_path": str(tmp_path / "arrays.npz"),
            "valid_from_train": 0.2,
            "shuffle_train": True,
            "norm": "minmax",
        },
        "model": {"kind": "lstm", "hidden": 16, "layers": 1, "dropout": 0.1},
        "train": {"epochs": 8, "batch_size": 32, "lr": 0.01, "early_stop_patience": 4, "seed": 7, "device": "auto"},
        "eval": {"threshold": 0.5, "save_cm": True},
        "io": {"save_dir": str(tmp_path / "runs"), "run_name": "earlier"},
    }
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    done = script("train", "--config", tmp_path / "settings.yaml", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["config"]["task"] == "direction"
    assert record["metrics"]["test"]["accuracy"] > 0.8
    matrix = np.loadtxt(tmp_path / "runs" / "earlier" / "confusion_matrix.csv", delimiter=",")
    assert matrix.sum() == 100
    assert len(pd.read_parquet(tmp_path / "runs" / "earlier" / "predictions.parquet")) == 100


def test_prepare_prints_the_data_card(script, runs):
    done = script("prepare", "--runs-dir", runs, "--data.tickers", "stocks", "--json")
    card = json.loads(done.stdout)
    assert (len(card["tickers"]), card["first_date"], card["last_date"]) == (20, "1996-01-02", "2022-12-28")
    assert card["rows"] == 6796 * 20
    assert any("survivors" in note for note in card["notes"])
    assert card["feature_summary"]["log_return"]["std"] > 0


@pytest.fixture(scope="module")
def searched(script_on_ray, runs):
    done = script_on_ray("tune", "--runs-dir", runs, "--name", "search", "--mode", "all", *FEW, *PRECISE, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["search"]


@pytest.fixture(scope="module")
def scaled(script_on_ray, runs):
    flags = ("--multipliers", 50, "--num-workers", 2, "--max-steps", 8, "--memory-limit", "2GiB")
    done = script_on_ray("scale", "--runs-dir", runs, "--name", "scale", "--json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["scale"]


def test_search_in_all_modes_compares_the_same_configs(searched, runs):
    assert searched["configs"] == 18
    assert searched["same_best"] is True
    assert searched["metric_gap"] <= 1e-6
    arms = searched["arms"]
    assert list(arms) == ["sequential", "packed", "ray"]
    assert all(row["seconds"] > row["start_seconds"] > 0 and row["cpu_seconds"] > 1 for row in arms.values())
    assert searched["packing_speedup"] == pytest.approx(arms["sequential"]["seconds"] / arms["packed"]["seconds"])
    assert searched["ray_speedup"] == pytest.approx(arms["packed"]["seconds"] / arms["ray"]["seconds"])
    lines = (runs / "search-ray" / "trials.jsonl").read_text().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 18


def test_scale_tells_which_arms_a_budget_allows(scaled):
    arms = [(row["arm"], row["status"]) for row in scaled]
    assert arms == [("in_memory", "out_of_memory"), ("streaming", "ok"), ("ray", "ok")]
    assert all(row["samples"] == 8 * 1024 and 50e6 < row["peak_memory_bytes"] <= 2 * 2**30 for row in scaled[1:])
    assert f"need {formatting.size(scaled[1]['windows'] * 30 * 6 * 4)}," in scaled[0]["reason"]
    assert scaled[2]["windows"] == scaled[1]["windows"]
    assert scaled[2]["simulated_nodes"] == 2
    assert all(row["warm_samples_per_second"] >= row["samples_per_second"] for row in scaled[1:])


def test_prepare_writes_a_set_that_scale_trains_on(script, tmp_path):
    few = ("--data.tickers", "AAPL", "KO", "--runs-dir", tmp_path / "runs", "--json")
    done = script("prepare", "--multiplier", 3, "--out", tmp_path / "set", *few)
    assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)
    files = {path.name: path.stat().st_size for path in (tmp_path / "set").iterdir()}
    assert files.pop("manifest.json")
    assert (sum(files.values()), len(files)) == (card["shards"]["bytes"], card["shards"]["files"])
    assert card["windows"]["train"] == card["shards"]["windows"] > 0
    flags = ("--arms", "streaming", "--multipliers", 3, "--max-steps", 2)
    done = script("scale", "--shards", tmp_path / "set", *flags, *few)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["scale"]
    assert (row["windows"], row["writing_seconds"]) == (card["windows"]["train"], 0.0)
    assert row["bytes_on_disk"] == card["shards"]["bytes"]


def test_dry_run_of_scale_tells_sizes_and_what_to_expect(script, tmp_path):
    flags = ("--multipliers", 10, 50, "--num-workers", 1, 2, "--runs-dir", tmp_path / "runs", "--json")
    done = script("scale", "--dry-run", *flags)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [size["windows"] for size in plan["sizes"]] == [934_000, 4_670_000]
    for size in plan["sizes"]:
        assert size["bytes_materialised"] == size["windows"] * 30 * 6 * 4
        assert [(arm["arm"], arm["num_workers"]) for arm in size["arms"]] == [
            ("in_memory", 0),
            ("streaming", 0),
            ("ray", 1),
            ("ray", 2),
        ]
    expected = [arm["expected_status"] for size in plan["sizes"] for arm in size["arms"]]
    assert expected == ["ok", "ok", "ok", "ok", "out_of_memory", "ok", "ok", "ok"]
    assert not (tmp_path / "runs").exists()


def test_report_is_written_from_a_search_and_a_scale_experiment(script, runs, searched, scaled):
    done = script("compare", "--runs-dir", runs, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((runs / "report" / "report.json").read_text())
    assert report["search"]["configs"] == 18
    assert len(report["scale"]) == 3
    assert {row["kind"] for row in report["models"]} == {"model", "naive"}
    assert (runs / "report" / "index.html").stat().st_size > 10_000
