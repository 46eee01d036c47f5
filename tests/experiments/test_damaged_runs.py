"""Damage in a folder of runs ends neither the report nor, without a message, a run that is resumed."""

import json
import shutil

import pytest


@pytest.fixture(scope="module")
def whole(script, tmp_path_factory):
    """A folder with a trained run, a search and a walk-forward run."""
    folder = tmp_path_factory.mktemp("runs")
    common = ("--runs-dir", folder, "--train.epochs", 1, "--json")
    for name, *flags in (
        ("train",),
        ("tune", "--mode", "sequential", "--trials", 2),
        ("walk_forward", "--folds", 2, "--num-workers", 0),
    ):
        done = script(name, *common, "--name", name.replace("_", "-"), *flags)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def runs(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "runs", symlinks=True)


def damage(path, change):
    path.write_bytes(change(path.read_bytes()))


DAMAGES = {
    "record of a newer version": ("train/record.json", lambda data: data.replace(b'"ok"', b'"cancelled"', 1)),
    "half a record": ("train/record.json", lambda data: data[: len(data) // 2]),
    "epochs not UTF-8": ("train/epochs.jsonl", lambda data: b"\xff" + data[1:]),
    "torn trial": ("tune/trials.jsonl", lambda data: data[20:]),
    "flipped digit of a trial": (
        "tune/trials.jsonl",
        lambda data: data.replace(b'"valid_loss":0', b'"valid_loss":1', 1),
    ),
    "blank line among trials": ("tune/trials.jsonl", lambda data: b"\n" + data),
}


@pytest.mark.parametrize(("file", "change"), DAMAGES.values(), ids=DAMAGES)
def test_report_leaves_a_damaged_run_out_and_names_its_file(script, runs, file, change):
    damage(runs / file, change)
    done = script("compare", "--runs-dir", runs, "--json")
    assert done.returncode == 0, done.stderr
    [line] = json.loads(done.stdout)["damaged"]
    assert str(runs / file) in line
    page = (runs / "report" / "index.html").read_text()
    assert "Damaged runs" in page
    assert "unreadable: 1 run" in page
    assert file in page
    assert file in (runs / "report" / "report.md").read_text()


def test_report_of_whole_runs_has_no_section_for_damaged_ones(script, runs):
    done = script("compare", "--runs-dir", runs, "--json")
    assert done.returncode == 0, done.stderr
    assert "damaged" not in json.loads(done.stdout)
    assert "Damaged runs" not in (runs / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("name", "file", "flags"),
    [
        ("tune", "trials.jsonl", ("--mode", "sequential", "--trials", 2)),
        ("walk_forward", "folds.jsonl", ("--folds", 2)),
    ],
)
def test_resumed_run_names_the_damaged_line(script, runs, name, file, flags):
    folder = runs / name.replace("_", "-")
    (folder / "record.json").unlink()
    damage(folder / file, lambda data: data.replace(b"0.", b"1.", 1))
    done = script(name, "--runs-dir", runs, "--name", folder.name, "--resume", *flags)
    assert done.returncode == 2
    assert f"{folder / file}, line 1 is damaged" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["../outside", "../runs/train"])
def test_settings_of_a_name_that_leads_out_of_the_folder_are_not_read(script, runs, tmp_path, name):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.yaml").write_text("task: nonsense\n")
    done = script("train", "--runs-dir", runs, "--name", name, "--resume")
    assert done.returncode == 2
    assert "nonsense" not in done.stderr
    assert "run name" in done.stderr
