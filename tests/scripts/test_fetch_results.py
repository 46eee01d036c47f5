import json
import os
import re
import shutil
import signal
from pathlib import Path

import forks
import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("--model.kind", "linear", "--data.tickers", "AAPL", "KO")
EPOCHS = ("--train.epochs", "2")


def experiment(name, *flags):
    done = forks.run([str(ROOT / "experiments" / f"{name}.py"), *map(str, flags)], cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Runs that train.py, tune.py, scale.py and walk_forward.py wrote."""
    folder = tmp_path_factory.mktemp("finished")
    space = tmp_path_factory.mktemp("space") / "space.yaml"
    space.write_text("train.seed: [1, 2]\ntrain.epochs: [2]\n")
    experiment("train", "--runs-dir", folder, "--name", "base", *SMALL, *EPOCHS)
    experiment("tune", "--runs-dir", folder, "--name", "search", *SMALL, "--space", space, "--mode", "sequential")
    arms = ("--multipliers", "1", "--arms", "streaming")
    experiment("scale", "--runs-dir", folder, "--name", "scale", *SMALL, *EPOCHS, *arms)
    experiment("walk_forward", "--runs-dir", folder, "--name", "folds", *SMALL, *EPOCHS, "--folds", "2")
    return folder


RUNS = ("base", "folds", "scale", "scale-1x-streaming", "search")


@pytest.fixture
def runs(cluster, finished):
    """The finished runs on the claim, and one that has not ended. Its value is the local folder."""
    shutil.copytree(finished, cluster.runs, symlinks=True, dirs_exist_ok=True)
    shutil.copytree(cluster.runs / "base", cluster.runs / "going", symlinks=True)
    (cluster.runs / "going/record.json").unlink()
    return cluster.work / "runs"


def write_local(runs, name, text="mine"):
    (runs / name).mkdir(parents=True)
    (runs / name / "epochs.jsonl").write_text(text)


def links(folder):
    return {str(path.relative_to(folder)): str(path.readlink()) for path in folder.rglob("*") if path.is_symlink()}


def visible(runs):
    return {path.name for path in runs.iterdir()}


def test_runs_of_every_script_arrive_whole_with_their_links_and_unfinished_ones_stay(cluster, runs, content):
    code, out, err = cluster.call("fetch-results")
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == [f"runs/{name} fetched" for name in RUNS]
    assert visible(runs) == set(RUNS)
    for name in RUNS:
        assert content(runs / name) == content(cluster.runs / name)
        assert links(runs / name) == links(cluster.runs / name)
    best = json.loads((runs / "base" / "record.json").read_text())["best_epoch"]
    assert links(runs / "base") == {"checkpoints/best": f"epoch-{best:05}", "checkpoints/last": "epoch-00002"}
    assert cluster.pods == []


def test_fetched_run_can_be_compared_and_resumed_from_its_checkpoints(cluster, runs):
    assert cluster.call("fetch-results")[0] == 0
    experiment("compare", "--runs-dir", runs)
    assert (runs / "report").is_dir()
    record = json.loads((runs / "base/record.json").read_text())
    (runs / "base/record.json").unlink()
    experiment("train", "--runs-dir", runs, "--name", "base", "--resume")
    assert json.loads((runs / "base/record.json").read_text())["metrics"] == record["metrics"]


def test_run_named_comes_alone_to_the_folder_named(cluster, runs):
    assert cluster.call("fetch-results", "scale", "--runs-dir", "elsewhere")[0] == 0
    assert visible(cluster.work / "elsewhere") == {"scale"}


def test_folder_that_cannot_be_made_is_reported_in_one_line_and_the_pod_is_deleted(cluster, runs):
    runs.write_text("a file")
    code, out, err = cluster.call("fetch-results")
    assert (code, out) == (1, "")
    assert err.startswith("ResourcesError: ")
    assert "File exists: 'runs'" in err
    assert len(err.splitlines()) == 1
    assert cluster.pods == []


@pytest.mark.parametrize("name", ["going", "serach", "../data"])
def test_name_without_an_ended_run_is_refused_with_the_ended_ones_and_does_not_keep_the_others(cluster, runs, name):
    code, out, err = cluster.call("fetch-results", "scale", name)
    assert (code, "scale fetched" in out) == (2, True)
    assert f"{name}: no ended run" in err
    assert f": {', '.join(RUNS)}" in err
    assert visible(runs) == {"scale"}


def test_second_fetch_transfers_nothing_also_after_a_report_was_made(cluster, runs):
    cluster.call("fetch-results")
    experiment("compare", "--runs-dir", runs)
    code, out, _ = cluster.call("fetch-results")
    assert code == 0
    assert out.count("already here") == len(RUNS)
    assert len([line for line in cluster.calls("exec") if " tar " in line]) == len(RUNS)


def test_local_run_with_other_files_is_kept_and_the_others_come(cluster, runs, content):
    write_local(runs, "search")
    code, out, err = cluster.call("fetch-results")
    assert code == 2
    assert "search: the run in runs is another" in err
    assert out.count("fetched") == len(RUNS) - 1
    assert content(runs / "search") == {"epochs.jsonl": b"mine"}


def test_local_run_whose_link_differs_is_another_run(cluster, runs):
    cluster.call("fetch-results", "base")
    (runs / "base/checkpoints/best").unlink()
    (runs / "base/checkpoints/best").symlink_to("epoch-00001")
    code, _, err = cluster.call("fetch-results", "base")
    assert code == 2
    assert "1 different: checkpoints/best" in err


def test_local_run_is_replaced_with_overwrite(cluster, runs, content):
    write_local(runs, "search")
    (runs / "search/only-here").touch()
    assert cluster.call("fetch-results", "--overwrite")[0] == 0
    assert content(runs / "search") == content(cluster.runs / "search")


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("damage", 3, r"base: arrived damaged .*\(2 different: record.json, started.json\)"),
        ("break", 1, "unexpected EOF"),
        ("cut", 3, "base: arrived damaged"),
    ],
)
def test_failed_transfer_leaves_the_runs_as_they_were(cluster, runs, content, fault, code, message, mine):
    runs.mkdir()
    if mine:
        write_local(runs, "base")
    before = content(cluster.work)
    cluster.fault(fault)
    found, _, err = cluster.call("fetch-results", "base", "--overwrite")
    assert found == code
    assert re.search(message, err)
    assert content(cluster.work) == before
    assert visible(runs) == ({"base"} if mine else set())
    assert cluster.pods == []


def test_terminated_fetch_leaves_no_pod_and_nothing_half_written(cluster, runs):
    assert cluster.terminated_in_transfer("fetch-results") == 128 + signal.SIGTERM
    assert cluster.pods == []
    assert list(runs.iterdir()) == []


TARGETS = ("/etc/hostname", "../epochs.jsonl", "..", ".", "checkpoints/epoch-00002")


def test_link_to_anything_but_a_name_in_its_own_folder_is_refused_and_the_other_runs_come(cluster, runs):
    for number, target in enumerate(TARGETS):
        shutil.copytree(cluster.runs / "folds", cluster.runs / f"linked-{number}")
        (cluster.runs / f"linked-{number}/link").symlink_to(target)
    code, out, err = cluster.call("fetch-results")
    assert code == 3
    for number, target in enumerate(TARGETS):
        assert f"linked-{number}: contains the link link -> {target};" in err
    assert visible(runs) == set(RUNS)
    assert out.count("fetched") == len(RUNS)


def test_run_with_a_pipe_is_refused_and_one_that_cannot_be_read_fails_alone(cluster, runs):
    os.mkfifo(cluster.runs / "base/pipe")
    cluster.fault("unreadable folds")
    code, _, err = cluster.call("fetch-results")
    assert code == 3
    assert "base: contains pipe" in err
    assert "folds: kubectl exec: tar: ./folds: Cannot open" in err
    assert visible(runs) == set(RUNS) - {"base", "folds"}


def test_lost_pod_ends_the_fetch_with_one_error(cluster, runs):
    cluster.fault("lost")
    code, _, err = cluster.call("fetch-results")
    assert code == 1
    assert err.count("no such pod") == 1


NAMES = ["a\x1b]0;pwn\x07b", "n\nl", "report", "...", "--help", "--use-compress-program=touch owned", "Upper"]


def test_folder_whose_name_is_no_run_name_is_reported_in_printable_characters_and_left_out(cluster, runs):
    for name in NAMES:
        shutil.copytree(cluster.runs / "folds", cluster.runs / name)
    code, out, err = cluster.call("fetch-results")
    assert code == 3
    for name in NAMES:
        assert f"{name!r}: not a valid" in err
    assert all(line.isprintable() for line in err.splitlines())
    assert visible(runs) == set(RUNS)
    assert out.count("fetched") == len(RUNS)
    assert not list(cluster.work.rglob("owned")) + list(cluster.folder.rglob("owned"))


def test_file_with_control_characters_in_its_name_arrives_and_is_escaped_in_messages(cluster, runs, content):
    (cluster.runs / "base/a\x1b[2Jb\nc").write_text("odd")
    assert cluster.call("fetch-results", "base")[0] == 0
    assert content(runs / "base") == content(cluster.runs / "base")
    (runs / "base/a\x1b[2Jb\nc").write_text("changed")
    err = cluster.call("fetch-results", "base")[2]
    assert r"1 different: 'a\x1b[2Jb\nc'" in err


def test_runs_larger_than_the_limit_or_the_free_disk_are_refused_before_they_are_sent(cluster, runs):
    with (cluster.runs / "base/huge").open("wb") as file:
        file.truncate(200 * 2**20)
    code, _, err = cluster.call("fetch-results", "--max-size", "100MiB")
    assert code == 1
    assert re.search(r"base: 200\.\d MiB.*--max-size", err)
    assert visible(runs) == set(RUNS) - {"base"}
    with (cluster.runs / "base/huge").open("wb") as file:
        file.truncate(2**43)
    sent = len([line for line in cluster.calls("exec") if " tar " in line])
    code, _, err = cluster.call("fetch-results", "base", "--max-size", "9999999GiB")
    assert (code, "free in runs" in err) == (1, True)
    assert len([line for line in cluster.calls("exec") if " tar " in line]) == sent


def test_claim_without_ended_runs_says_so(cluster):
    code, out, _ = cluster.call("fetch-results")
    assert (code, len(out.splitlines())) == (0, 1)
