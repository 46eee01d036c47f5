"""Reports of chosen runs: by name, by project; what differs between them, and every search in detail."""

from pathlib import Path

import pytest
from search_records import side
from test_page import record, trained

from sp500.config import RunConfig
from sp500.errors import ConfigError
from sp500.jobs.spec import JobSpec
from sp500.report import differences, page
from sp500.report.section import Runs, read_runs
from sp500.runs.record import RunRecord
from sp500.runs.store import Run, RunStore


def stored(folder: Path, *records: RunRecord) -> RunStore:
    for run in records:
        (folder / run.name).mkdir()
        Run(folder / run.name).write_record(run)
    return RunStore(folder)


def of_project(name: str, minute: int, project: str, **model: object) -> RunRecord:
    config = {
        "task": "returns",
        "model": {"kind": "mlp", "hidden": 64, **model},
        "train": {},
        "io": {"project": project},
    }
    return record(name, minute, config=config)


def names(runs: Runs) -> list[str]:
    return [run.name for run in runs.records]


def test_runs_are_chosen_by_name_and_by_project(tmp_path: Path) -> None:
    search = side("all", 9, "all", 9.0, runs={"packed": "pack", "ray": "ray"})
    arms = [side("pack", 7, "packed", 9.0), side("ray", 8, "ray", 9.0)]
    store = stored(tmp_path, of_project("a", 1, "one"), of_project("b", 2, "two"), trained("c", 3), *arms, search)
    assert names(read_runs(store, names=["c", "a"])) == ["a", "c"]
    assert names(read_runs(store, names=["all"])) == ["pack", "ray", "all"]  # a search brings its arms
    assert names(read_runs(store, project="two")) == ["b"]
    assert not read_runs(store).chosen
    with pytest.raises(ConfigError, match=r"no run nope, x in this folder"):
        read_runs(store, names=["a", "x", "nope"])
    with pytest.raises(ConfigError, match=r"--project three: no run"):
        read_runs(store, project="three")


def test_table_has_the_settings_that_differ_and_no_places() -> None:
    runs = [of_project("a", 1, "one"), of_project("b", 2, "two", hidden=32, layers=3)]
    table = differences.compare(runs)
    assert [column.title for column in table.columns] == ["Setting", "a", "b"]
    assert [row.cells for row in table.rows[:2]] == [("model.hidden", "64", "32"), ("model.layers", "-", "3")]
    assert [row.cells[0] for row in table.rows[2:]] == ["arm", "status", "seconds", "validation loss"]


def test_every_search_of_chosen_runs_is_in_detail_and_the_earlier_folded(tmp_path: Path) -> None:
    records = [side("old", 1, "packed", 9.0, key="old"), side("new", 2, "packed", 8.0)]
    page.write_runs(Runs(records, {}, {}, chosen=True), tmp_path)
    html, markdown = (tmp_path / "index.html").read_text(), (tmp_path / "report.md").read_text()
    assert html.count("<caption>The arms of the search</caption>") == markdown.count("**The arms of the search**") == 2
    assert "<summary>old</summary>" in html
    assert "### old" in markdown
    assert "not shown in detail" not in html


def test_project_of_a_job_is_that_of_its_runs_and_changes_no_fingerprint() -> None:
    assert "SP500_PROJECT" not in JobSpec(argv=["true"]).environment
    assert JobSpec(argv=["true"], project="fx").environment["SP500_PROJECT"] == "fx"
    own = JobSpec(argv=["true"], project="fx", env={"SP500_PROJECT": "other"})
    assert own.environment["SP500_PROJECT"] == own.labelled["SP500_PROJECT"] == "other"
    assert RunConfig(io={"project": "fx"}).fingerprint == RunConfig().fingerprint
    with pytest.raises(ValueError, match="project"):
        RunConfig(io={"project": "a b"})
