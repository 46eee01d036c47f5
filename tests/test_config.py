"""Settings: refused at the door by field, limit and what came; and what makes two runs comparable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from sp500.config import DataConfig, IOConfig, ModelConfig, RunConfig, TrainConfig
from sp500.errors import ConfigError
from sp500.schema import validate


def test_settings_of_the_earlier_trainer_run_as_they_are():
    text = """
    data: {npz_path: prepared/windows.npz, valid_from_train: true, shuffle_train: true, norm: zscore}
    model: {kind: lstm, hidden: 128, layers: 2, dropout: 0.2}
    train: {epochs: 50, batch_size: 64, lr: 1e-3, early_stop_patience: 10, seed: 42, device: auto}
    eval: {threshold: 0.5, save_cm: true}
    io: {save_dir: results, run_name: lstm-1}
    """
    config = RunConfig.model_validate(yaml.safe_load(text))
    assert (config.model.kind, config.model.hidden, config.train.epochs) == ("lstm", 128, 50)
    assert config.train.lr == 0.001  # YAML takes 1e-3 for text
    assert (config.data.npz_path, config.data.valid_from_train) == (Path("prepared/windows.npz"), 0.175)
    assert DataConfig(valid_from_train=False).valid_from_train == 0.0


def test_settings_survive_their_file():
    config = RunConfig(
        task="direction",
        data={"tickers": ["AAPL", "KO"], "start": "2000-01-03", "real_moves": ["KO:2000-01-04"], "npz_path": "a.npz"},
        io={"run_name": "a"},
    )
    assert RunConfig.model_validate(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"data": {"windw": 5}}, "data.windw", "Extra"),
        ({"modell": {}}, "modell", "did you mean model"),
        ({"train": {"optimiser": "sgd"}}, "train.optimiser", "Extra"),
        ({"train": {"epochs": "many"}}, "train.epochs", "many"),
        ({"train": {"epochs": 2.5}}, "train.epochs", "2.5"),
        ({"train": {"epochs": 0}}, "train.epochs", "greater than 0"),
        ({"train": {"lr": -0.1}}, "train.lr", "greater than 0"),
        ({"train": {"lr": "nan"}}, "train.lr", "nan"),
        ({"train": {"lr": "inf"}}, "train.lr", "inf"),
        ({"train": {"weight_decay": "inf"}}, "train.weight_decay", "inf"),
        ({"train": {"clip": "inf"}}, "train.clip", "inf"),
        ({"train": {"dtype": "float16"}}, "train.dtype", "float16"),
        ({"train": {"amp": "float16"}}, "train.amp", "float16"),
        ({"train": {"device": "tpu"}}, "train.device", "tpu"),
        ({"data": {"noise": "inf"}}, "data.noise", "inf"),
        ({"data": {"window": 0}}, "data.window", "greater than 0"),
        ({"data": {"test_fraction": 1.0}}, "data.test_fraction", "less than 1"),
        ({"data": {"norm": "robust"}}, "data.norm", "robust"),
        ({"data": {"start": "yesterday"}}, "data.start", "yesterday"),
        ({"data": {"tickers": "AAPL"}}, "data.tickers", "AAPL"),
        ({"data": {"real_moves": ["AAPL"]}}, "data.real_moves.0", "AAPL"),
        ({"data": {"real_moves": ["AAPL:2000-9-29"]}}, "data.real_moves.0", "AAPL:2000-9-29"),
        ({"model": {"dropout": 1.0}}, "model.dropout", "less than 1"),
        ({"eval": {"threshold": 0.0}}, "eval.threshold", "greater than 0"),
        ({"eval": {"cost_bps": "inf"}}, "eval.cost_bps", "inf"),
        ({"num_workers": -1}, "num_workers", "greater than or equal to 0"),
        ({"synthetic": {"classes": 1}}, "synthetic.classes", "greater than 1"),
    ],
)
def test_bad_setting_is_refused_by_key_and_value(settings, key, said):
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(settings)
    (error,) = caught.value.errors()
    assert ".".join(map(str, error["loc"])) == key
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DataConfig(window=30, horizon=1, gap=30), r"data.gap is 30, .*31"),
        (lambda: DataConfig(window=5, horizon=10, gap=14), r"data.gap is 14, .*15"),
        (lambda: DataConfig(start="2020-01-02", end="2020-01-02"), r"data\.start 2020-01-02 .*data\.end 2020-01-02"),
        (lambda: ModelConfig(kind="transformer", hidden=30), r"model\.hidden 30 .*model\.heads 4"),
        (lambda: ModelConfig(kind="linear", hidden=32), "model.hidden .*kind linear"),
        (lambda: ModelConfig(kind="linear", layers=3), "model.layers .*kind linear"),
        (lambda: ModelConfig(kind="linear", dropout=0.5), "model.dropout .*kind linear"),
        (lambda: ModelConfig(kind="mlp", heads=2), "model.heads .*kind mlp"),
        (lambda: ModelConfig(kind="lstm", heads=2), "model.heads .*kind lstm"),
        (lambda: setattr(RunConfig().train, "epochs", 3), "frozen"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_by_both_names(make, said):
    with pytest.raises(ValidationError, match=said):
        make()


def test_gap_is_the_one_given_or_window_and_horizon():
    assert DataConfig(window=30, horizon=1, gap=31).purge == 31
    assert DataConfig(window=20, horizon=5).purge == 25


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "9" * 63, "run-2020.01.02"])
def test_run_name_that_is_one_is_taken(name):
    assert IOConfig(run_name=name).run_name == name


BAD_NAMES = ["", ".", "..", "../..", "/tmp/a", "a/b", "a\\b", "Run", "-a", "_a", ".a", "a b", "ä", "a\n", "a\x00", "~"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "9" * 64])
def test_run_name_that_could_leave_the_folder_is_refused(name):
    with pytest.raises(ValidationError, match="run_name"):
        IOConfig(run_name=name)


# The fingerprint.

BASE = RunConfig()


def changed(settings: dict[str, Any], base: dict[str, Any] | None = None) -> RunConfig:
    return RunConfig.model_validate({**(base or {}), **settings})


def test_fingerprints_stay_what_they_were_in_older_records():
    # Of 2026-11-23, before train.amp, schedule, warmup, lr_end and decay.
    for settings, fingerprint in (
        ({}, "6c2cd02dc0edf4da"),
        ({"train": {"refit": True, "weight_decay": 0.1, "clip": 0.0}}, "ddf6f5a330561828"),
        ({"task": "language", "model": {"kind": "gpt"}, "train": {"max_steps": 40}}, "d39e285e2c7ff69f"),
        ({"task": "images", "model": {"kind": "cnn"}, "train": {"dtype": "float64"}}, "08871afe9868483d"),
    ):
        assert changed(settings).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"amp": "bfloat16", "dtype": "float64"}, "train.dtype float32"),
        ({"refit": True, "schedule": "cosine"}, "train.refit .* train.schedule constant"),
        ({"refit": True, "warmup": 0.1}, "train.refit .* train.warmup"),
        ({"lr_end": 0.1}, "train.lr_end .* train.schedule constant"),
        ({"keep": 1}, "greater than 1"),
        ({"monitor_mode": "max"}, "valid_loss"),
    ],
    ids=str,
)
def test_settings_of_training_that_do_not_fit_together_are_refused(train, said):
    with pytest.raises(ValidationError, match=said):
        changed({"train": train})


@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": 4},
        {"train": {"device": "cpu"}},
        {"train": {"threads": 4}},
        {"io": {"save_dir": "/elsewhere", "run_name": "other"}},
        {"data": {"cache_dir": "/elsewhere"}},
        {"train": {"per_worker_batch": True}},
        {"train": {"micro_batch": 8, "recompute": True, "compile": True, "parallel": "fsdp"}},
        {"train": {"checkpoint_steps": 50, "keep": "all"}},
    ],
    ids=str,
)
def test_fingerprint_leaves_out_where_and_how_a_run_runs(settings):
    assert changed(settings).fingerprint == BASE.fingerprint


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "direction"},
        {"data": {"source": "prices.csv"}},
        {"data": {"tickers": ["AAPL"]}},
        {"data": {"start": "2000-01-03"}},
        {"data": {"end": "2000-01-03"}},
        {"data": {"window": 31}},
        {"data": {"horizon": 2}},
        {"data": {"test_fraction": 0.2}},
        {"data": {"valid_from_train": 0.2}},
        {"data": {"gap": 60}},
        {"data": {"norm": "minmax"}},
        {"data": {"shuffle_train": False}},
        {"data": {"seed": 1}},
        {"data": {"multiplier": 2}},
        {"data": {"noise": 0.2}},
        {"data": {"npz_path": "a.npz"}},
        {"model": {"kind": "lstm"}},
        {"model": {"hidden": 32}},
        {"model": {"layers": 3}},
        {"model": {"dropout": 0.0}},
        {"train": {"epochs": 3}},
        {"train": {"batch_size": 64}},
        {"train": {"lr": 0.01}},
        {"train": {"weight_decay": 0.1}},
        {"train": {"clip": 0.0}},
        {"train": {"early_stop_patience": 0}},
        {"train": {"max_steps": 10}},
        {"train": {"seed": 1}},
        {"train": {"dtype": "float64"}},
        {"train": {"amp": "bfloat16"}},
        {"train": {"schedule": "cosine"}},
        {"train": {"schedule": "cosine", "lr_end": 0.1}},
        {"train": {"warmup": 0.1}},
        {"train": {"optimizer": "sgd"}},
        {"train": {"ema": 0.9}},
        {"train": {"monitor": "top1"}},
        {"train": {"optimizer_options": {"betas": [0.8, 0.99]}}},
        {"train": {"decay": "matrices"}},
        {"num_workers": 2, "train": {"per_worker_batch": True}},
    ],
    ids=str,
)
def test_fingerprint_changes_with_what_decides_the_numbers(settings):
    assert changed(settings).fingerprint != BASE.fingerprint


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"synthetic": {"samples": 100}}, False),
        ({"synthetic": {"classes": 3}}, False),
        ({"data": {"seed": 1}}, False),
        ({"data": {"shuffle_train": False}}, False),
        ({"train": {"epochs": 3}}, False),
        ({"data": {"source": "prices.csv"}}, True),
        ({"data": {"window": 5}}, True),
    ],
    ids=str,
)
def test_fingerprint_of_the_smoke_job_covers_what_it_uses(settings, same):
    smoke = {"task": "synthetic"}
    assert (changed(settings, smoke).fingerprint == changed({}, smoke).fingerprint) == same


def test_fingerprint_of_a_model_leaves_out_keys_it_does_not_use():
    plain = RunConfig(model=ModelConfig(kind="linear"))
    other = plain.model_copy(update={"model": plain.model.model_copy(update={"hidden": 7})})
    assert plain.fingerprint == other.fingerprint


def run_python(program: str) -> str:
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_fingerprint_is_16_hex_digits_and_the_same_in_another_process():
    printed = run_python("from sp500.config import RunConfig; print(RunConfig().fingerprint)")
    assert printed == BASE.fingerprint
    assert int(printed, 16) < 16**16
    assert len(printed) == 16


def test_per_worker_pair_of_runs_shares_a_fingerprint_with_the_global_batch_it_amounts_to():
    per_worker = RunConfig(num_workers=2, train=TrainConfig(per_worker_batch=True, batch_size=128, lr=0.0005))
    assert per_worker.fingerprint == RunConfig(train=TrainConfig(batch_size=256, lr=0.001)).fingerprint


# Batch and rate.


@pytest.mark.parametrize(
    ("workers", "per_worker", "times"), [(0, False, 1), (4, False, 1), (0, True, 1), (1, True, 1), (4, True, 4)]
)
def test_batch_and_rate_grow_with_workers_only_when_they_are_per_worker(workers, per_worker, times):
    config = RunConfig(num_workers=workers, train=TrainConfig(per_worker_batch=per_worker))
    assert (config.batch_size, config.lr) == (256 * times, pytest.approx(0.001 * times))


def test_settings_load_nothing_heavy():
    heavy = "('torch', 'ray', 'numpy', 'pandas')"
    assert run_python(f"import sys, sp500.config; print([name for name in {heavy} if name in sys.modules])") == "[]"


# Settings and fingerprints of version 0.1.0 before images and language: runs of then and now pair up.
EARLIER = json.loads((Path(__file__).parent / "fingerprints.json").read_text())


@pytest.mark.parametrize("source", ["bundled", "yfinance"])
def test_names_of_tickers_mean_the_same_in_any_case(source):
    typed, written = (
        RunConfig(data={"source": source, "tickers": names}) for names in (["aapl ", "Ko"], ["AAPL", "KO"])
    )
    assert typed.fingerprint == written.fingerprint
    assert RunConfig(data={"tickers": ["stocks"]}).data.tickers == ("stocks",)
    own = RunConfig(data={"source": "a.csv", "tickers": ["aapl"]})  # a name of the file's own
    assert own.data.tickers == ("aapl",)


@pytest.mark.parametrize(("settings", "fingerprint"), EARLIER)
def test_fingerprints_of_earlier_runs_stay(settings, fingerprint):
    assert RunConfig.model_validate(settings).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "retruns"}, "'retruns': .*did you mean returns"),
        ({"model": {"kind": "gru"}}, "'gru': .*linear, .*FILE.py:NAME"),
        ({"model": {"kind": "lstn"}}, "did you mean lstm"),
        ({"model": {"options": {"width": 3}}}, "model.options .* mlp"),
        ({"model": {"kind": "mine.py:Net", "options": {"cap": [float("nan")]}}}, "model.options.cap.*finite"),
    ],
)
def test_unknown_task_or_model_is_refused_with_the_nearest(settings, said):
    with pytest.raises(ConfigError, match=said):
        validate(RunConfig, settings, "here")
