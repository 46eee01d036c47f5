import os
import signal

import pytest


def write_run(runs, name, text="close", ended=True):
    folder = runs / name
    (folder / "checkpoints/best").mkdir(parents=True)
    (folder / "checkpoints/best/model.safetensors").write_bytes(os.urandom(40_000))
    (folder / "epochs.jsonl").write_text(text)
    if ended:
        (folder / "record.json").write_text("{}")


@pytest.fixture
def runs(cluster):
    """Runs on the claim: two that ended, one that did not."""
    write_run(cluster.runs, "search")
    write_run(cluster.runs, "scale")
    write_run(cluster.runs, "going", ended=False)
    return cluster.work / "runs"


def test_ended_runs_come_file_by_file_and_unfinished_ones_stay(cluster, runs, content):
    code, out, _ = cluster.call("fetch-results")
    assert code == 0
    assert out == "runs/scale fetched, checksums equal\nruns/search fetched, checksums equal\n"
    there = content(cluster.runs)
    assert content(runs) == {path: body for path, body in there.items() if not path.startswith("going/")}
    assert {path.name for path in runs.iterdir()} == {"scale", "search"}
    assert cluster.pods == []


def test_run_named_comes_alone_to_the_folder_named(cluster, runs):
    assert cluster.call("fetch-results", "scale", "--runs-dir", "elsewhere")[0] == 0
    assert [path.name for path in (cluster.work / "elsewhere").iterdir()] == ["scale"]


def test_folder_that_cannot_be_made_is_told_in_one_line_and_the_pod_is_deleted(cluster, runs):
    runs.write_text("a file")
    code, out, err = cluster.call("fetch-results")
    assert (code, out) == (1, "")
    assert err.startswith("ResourcesError: ")
    assert "File exists: 'runs'" in err
    assert len(err.splitlines()) == 1
    assert cluster.pods == []


@pytest.mark.parametrize("name", ["going", "serach", "../data"])
def test_name_of_no_ended_run_is_refused_with_those_there_are(cluster, runs, name):
    code, _, err = cluster.call("fetch-results", name)
    assert code == 2
    assert f"no ended run {name} on the claim; it has: scale, search" in err


def test_fetched_twice_nothing_is_sent_again(cluster, runs):
    cluster.call("fetch-results")
    code, out, _ = cluster.call("fetch-results")
    assert code == 0
    assert out.count("is here already") == 2
    assert len([line for line in cluster.calls("exec") if " tar " in line]) == 2


def test_local_run_of_that_name_is_kept_and_the_others_come(cluster, runs, content):
    write_run(runs, "search", text="mine")
    before = content(runs / "search")
    code, out, err = cluster.call("fetch-results")
    assert code == 2
    assert "search: another run of that name is in runs and was kept" in err
    assert (out, err.splitlines()[0]) == ("", "runs/scale fetched, checksums equal")
    assert content(runs / "search") == before


def test_local_run_of_that_name_is_replaced_when_asked(cluster, runs, content):
    write_run(runs, "search", text="mine")
    (runs / "search/only-here").touch()
    assert cluster.call("fetch-results", "--overwrite")[0] == 0
    assert content(runs / "search") == content(cluster.runs / "search")


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("damage", 3, "run scale arrived damaged and was not kept (1 different: epochs.jsonl)"),
        ("break", 1, "unexpected EOF"),
        ("cut", 3, "run scale arrived damaged and was not kept"),
    ],
)
def test_transfer_that_fails_leaves_the_runs_as_they_were(cluster, runs, content, fault, code, said, mine):
    if mine:
        write_run(runs, "scale", text="mine")
    before = content(cluster.work)
    cluster.fault(fault)
    found, _, err = cluster.call("fetch-results", "scale", "--overwrite")
    assert found == code
    assert said in err
    assert content(cluster.work) == before
    assert [path.name for path in runs.iterdir()] == (["scale"] if mine else [])
    assert cluster.pods == []


def test_terminated_fetch_leaves_no_pod_and_nothing_half_written(cluster, runs):
    assert cluster.terminated_in_transfer("fetch-results") == 128 + signal.SIGTERM
    assert cluster.pods == []
    assert list(runs.iterdir()) == []


def test_link_on_the_claim_is_refused(cluster, runs):
    (cluster.runs / "scale/link").symlink_to("/etc/hostname")
    code, _, err = cluster.call("fetch-results", "scale")
    assert code == 3
    assert "'scale/link' on the claim is no plain file or folder" in err
    assert list(runs.iterdir()) == []


def test_claim_without_ended_runs_says_so(cluster):
    assert cluster.call("fetch-results")[:2] == (0, "no run has ended on the claim yet\n")
