"""Runs that version 0.1.0 left on 2026-11-26 are read, reported, served and resumed with the numbers that it gave.

README.md says how they were made. A key that a later version adds to a record or to settings is no fault. What was
there keeps its value.
"""

from __future__ import annotations

import base64
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from forks import run
from make_runs import KILLED, numbers, place, unpack, windows

import sp500
from sp500 import Predictor
from sp500.config import OwnModel, RunConfig, kinds
from sp500.runs.store import RunStore

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "experiments"
COMMANDS = {name: shlex.split(line) for name, line in yaml.safe_load((HERE / "commands.yaml").read_text()).items()}
ENDED = [name for name in COMMANDS if name not in KILLED]
PARTS = {
    **{f"search-{arm}": "search" for arm in ("sequential", "packed", "ray")},
    **{f"scale-{size}x-{arm}": "scale" for size in (1, 2) for arm in ("in_memory", "streaming")},
}
"""Runs that another run made, and which."""
TWINS = {
    "returns-killed": "returns",
    "own-killed": "own",
    "search-killed": "search-packed",
    "folds-killed": "folds",
}
"""Runs of the same settings that nothing interrupted."""
NO_ARGUMENTS = ("io", "name", "runs_dir", "seed", "fallback")
"""Settings of a script that a function takes under another name, or as keys of a section."""
FLOAT32, FLOAT64 = 1e-4, 1e-9
"""Relative differences that another processor may make; on one processor there are none."""


def kept(name: str) -> Any:
    """What the old code gave."""
    return json.loads((HERE / "expected" / f"{name}.json").read_text())


def differences(old: object, new: object, rel: float, place: str = "") -> list[str]:
    """Where something that was there has another value now."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [line for key in old for line in differences(old[key], new.get(key), rel, f"{place}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for number, pair in pairs for line in differences(*pair, rel, f"{place}[{number}]")]
    if isinstance(old, float) and isinstance(new, float):
        return [] if new == pytest.approx(old, rel=rel, abs=rel * 0.01, nan_ok=True) else [f"{place}: {old}, now {new}"]
    return [] if old == new and type(old) is type(new) else [f"{place}: {old!r}, now {new!r}"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the runs were made in. Tests change no result in it."""
    folder = tmp_path_factory.mktemp("old")
    unpack(folder)
    return folder


@pytest.fixture
def here(old: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the current folder, with a home in which no Python file was ever given."""
    monkeypatch.chdir(old)
    monkeypatch.setenv("HOME", str(old / ".home"))
    return old


@pytest.fixture
def script(here: Path) -> Callable[..., Any]:
    """Runs a script in that folder, and reads the JSON or YAML that it prints."""

    def call(name: str, *flags: str) -> Any:
        done = run([str(SCRIPTS / f"{name}.py"), *flags], cwd=here)
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout) if "--print-config" in flags else json.loads(done.stdout)

    return call


def test_every_run_is_read(old):
    runs = RunStore(old / "runs").scan()
    assert runs.damaged == ()
    assert {record.name for record in runs.records} == {*ENDED, *PARTS}
    assert {record.name for record in runs.unended} == {*KILLED}
    assert {record.status for record in runs.records} == {"ok"}


def test_report_has_the_numbers_that_it_had(script, tmp_path):
    report = script("compare", "--runs-dir", "runs", "--out", str(tmp_path), "--rates", "rates.yaml", "--json")
    assert differences(kept("report"), report, FLOAT64) == []


# The record of a search in all modes has the settings that the search began with.
@pytest.mark.parametrize("name", sorted({*ENDED, *PARTS} - {"search"}))
def test_fingerprint_of_a_record_is_that_of_its_settings(old, name):
    record = RunStore(old / "runs").record(name)
    assert record is not None
    assert record.best_config(old / "runs" / name).fingerprint == record.fingerprint


@pytest.mark.parametrize("name", [name for name in COMMANDS if "own" not in name])
def test_settings_that_a_run_began_with_have_their_fingerprint(old, name):
    begun = RunStore(old / "runs").run(name).start_record()
    assert begun is not None
    assert RunConfig.model_validate(begun.config).fingerprint == begun.fingerprint


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_the_effective_settings_that_it_had(script, name):
    command, *flags = COMMANDS[name]
    effective = yaml.safe_load((HERE / "expected" / "effective.yaml").read_text())[name]
    now = script(command, *flags, *place(name, flags), "--print-config")
    assert differences(leave_other_kinds(effective), now, 0) == []


def leave_other_kinds(settings: dict) -> dict:
    """Settings without those of other tasks and kinds of model, which were kept with their defaults."""
    task, model = kinds.tasks().get(settings["task"]), kinds.models().get(settings["model"]["kind"], OwnModel)
    others = {kind.section for kind in kinds.tasks().values() if kind.section} - {task and task.section}
    used = {key: value for key, value in settings["model"].items() if key in model.model_fields}
    return {key: value for key, value in settings.items() if key not in others} | {"model": used}


@pytest.mark.parametrize("name", ENDED)
def test_resuming_an_ended_run_finds_its_settings_unchanged_and_gives_its_record(script, old, name):
    answer = script(COMMANDS[name][0], "--name", name, "--runs-dir", "runs", "--resume", "--json")
    record = json.loads((old / "runs" / name / "record.json").read_text())
    del record["sha256"]
    assert differences(record, answer, 0) == []


# A dry run of a scale experiment trains, to measure the speed.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "scale"])
def test_settings_file_of_a_run_is_planned_with_its_fingerprint(script, old, name):
    plan = script(COMMANDS[name][0], "--config", f"runs/{name}/config.yaml", "--dry-run", "--json")
    begun = RunStore(old / "runs").run(name).start_record()
    assert begun is not None
    assert plan["fingerprint"] == begun.fingerprint


@pytest.mark.parametrize("name", [name for name in ENDED if COMMANDS[name][0] == "train"])
def test_function_with_the_settings_of_an_ended_run_gives_its_record(here, name):
    effective = yaml.safe_load((HERE / "expected" / "effective.yaml").read_text())[name]
    settings = {key: value for key, value in effective.items() if key not in NO_ARGUMENTS and value is not None}
    record = sp500.train(name=name, runs_dir="runs", **settings | {"resume": True, "trust_source": True})
    assert record.record == RunStore(here / "runs").record(name)


@pytest.mark.parametrize("name", kept("outputs"))
def test_trained_model_answers_as_it_did(here, name):
    predictor, answer = Predictor(here / "runs" / name, trust_source=True), kept("outputs")[name]
    expected = np.frombuffer(base64.b64decode(answer["base64"]), answer["dtype"]).reshape(answer["shape"])
    recipe = predictor.recipe
    output = predictor.outputs(windows((3, recipe.window, *recipe.row), recipe.row_dtype))
    assert output.dtype == expected.dtype
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("name", kept("outputs"))
def test_trained_model_is_judged_as_it_was(here, name):
    record = RunStore(here / "runs").record(name)
    assert record is not None
    judged = json.loads(json.dumps(Predictor(here / "runs" / name, trust_source=True).judge()))
    rel = FLOAT64 if record.config["train"]["dtype"] == "float64" else FLOAT32
    assert differences(record.model_dump(mode="json")["metrics"], judged, rel) == []


@pytest.mark.parametrize("name", KILLED)
def test_killed_run_is_resumed_to_the_same_end(script, old, tmp_path, name):
    folder = tmp_path / "runs" / name
    shutil.copytree(old / "runs" / name, folder, symlinks=True)
    trials = folder / "trials.jsonl"
    before = trials.read_text() if trials.exists() else ""
    flags = ("--name", name, "--runs-dir", str(folder.parent), "--resume", "--trust-source", "--json")
    record = script(COMMANDS[name][0], *flags)
    assert differences(kept("resumed")[name], json.loads(json.dumps(numbers(folder))), FLOAT64) == []
    if before:
        assert trials.read_text().startswith(before)
        assert (record["search"]["resumed"], record["search"]["rerun"]) == (before.count("\n"), 0)
    if twin := TWINS.get(name):
        assert differences(numbers(old / "runs" / twin), numbers(folder), FLOAT64) == []
    if twin and (folder / "predictions.parquet").exists():
        table, whole = (pd.read_parquet(path / "predictions.parquet") for path in (folder, old / "runs" / twin))
        pd.testing.assert_frame_equal(table, whole, rtol=FLOAT64)


def test_queue_lists_its_jobs(here):
    done = run(["sp500", "jobs", "list", "--all", "--json", "--state-dir", "state"], cwd=here)
    assert done.returncode == 0, done.stderr
    assert differences(kept("jobs"), json.loads(done.stdout), FLOAT64) == []
