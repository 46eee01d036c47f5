import os
import shutil
import signal

import pytest


@pytest.fixture
def prices(cluster):
    folder = cluster.work / "prices"
    (folder / "more").mkdir(parents=True)
    (folder / "a.csv").write_text("date,close\n2020-01-02,1\n")
    (folder / "more/odd name\nwith ümlaut.csv").write_bytes(os.urandom(70_000))
    return folder


def test_folder_uploaded_lies_on_the_claim_file_by_file(cluster, prices, content):
    code, out, _ = cluster.call("upload-data", "prices")
    assert (code, out) == (0, "/data/prices uploaded: 2 files, checksums equal\n")
    assert content(cluster.data) == {f"prices/{path}": body for path, body in content(prices).items()}
    assert cluster.pods == []
    assert cluster.call("upload-data", "prices")[0] == 0  # sent once
    assert len([line for line in cluster.calls("exec") if " tar " in line]) == 1
    assert cluster.call("upload-data", "prices", "--name", "prices-2")[0] == 0
    assert {path.name for path in cluster.data.iterdir()} == {"prices", "prices-2"}


def test_other_files_of_that_name_are_kept_unless_overwritten(cluster, prices, content):
    (cluster.data / "prices").mkdir()
    (cluster.data / "prices/old.csv").write_text("old")
    code, _, err = cluster.call("upload-data", "prices")
    assert code == 3
    assert "(2 missing: a.csv, " in err
    assert "--overwrite" in err
    assert content(cluster.data) == {"prices/old.csv": b"old"}
    assert cluster.call("upload-data", "prices", "--overwrite")[0] == 0
    assert set(content(cluster.data)) == {f"prices/{path}" for path in content(prices)}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [("damage", 3, "arrived damaged and was discarded (1 different: a.csv)"), ("break", 1, "unexpected EOF")],
)
def test_transfer_that_fails_leaves_the_claim_as_it_was(cluster, prices, content, fault, code, said, overwrite):
    if overwrite:
        (cluster.data / "prices").mkdir()
        (cluster.data / "prices/old.csv").write_text("old")
    before = content(cluster.data)
    cluster.fault(fault)
    found, _, err = cluster.call("upload-data", "prices", *(["--overwrite"] if overwrite else []))
    assert found == code
    assert said in err
    assert content(cluster.data) == before
    assert [path.name for path in cluster.data.iterdir()] == (["prices"] if overwrite else [])
    assert cluster.pods == []


def test_pod_that_never_gets_ready_is_told_with_its_reason_and_deleted(cluster, prices):
    cluster.fault("unready")
    code, _, err = cluster.call("upload-data", "prices", "--timeout", "0")
    assert code == 1
    assert "within 0 s" in err
    assert "ImagePullBackOff: no such image" in err
    assert cluster.pods == []


def test_terminated_upload_deletes_its_pod_and_what_it_wrote(cluster, prices):
    assert cluster.terminated_in_transfer("upload-data", "prices") == 128 + signal.SIGTERM
    assert cluster.pods == []
    assert list(cluster.data.iterdir()) == []


def test_folder_forgotten_by_a_killed_upload_is_cleared(cluster, prices):
    forgotten, fresh = cluster.data / ".incoming-1", cluster.data / ".incoming-2"
    forgotten.mkdir()
    fresh.mkdir()
    os.utime(forgotten, (0, 0))
    assert cluster.call("upload-data", "prices")[0] == 0
    assert {path.name for path in cluster.data.iterdir()} == {"prices", ".incoming-2"}


def test_folder_whose_replacement_was_killed_outlives_other_uploads_and_is_put_back(cluster, prices, content):
    (cluster.data / "prices").mkdir()
    (cluster.data / "prices/old.csv").write_text("old")
    os.utime(cluster.data / "prices", (0, 0))
    (cluster.folder / "deadly").mkdir()
    mv = cluster.folder / "deadly/mv"
    mv.write_text(f'#!/bin/sh\n"{shutil.which("mv")}" "$@"\nkill -9 $PPID\n')
    mv.chmod(0o755)
    cluster.fault("killed")
    assert cluster.call("upload-data", "prices", "--overwrite")[0] == 1
    assert not (cluster.data / "prices").exists()
    cluster.fault("")
    assert cluster.call("upload-data", "prices", "--name", "other")[0] == 0
    assert cluster.call("upload-data", "prices")[0] == 3
    assert content(cluster.data / "prices") == {"old.csv": b"old"}
    assert {path.name for path in cluster.data.iterdir()} == {"prices", "other"}


def test_replaced_folder_that_a_killed_upload_left_is_cleared_by_the_next_of_that_name(cluster, prices):
    cluster.call("upload-data", "prices")
    (cluster.data / ".replaced-prices").mkdir()
    assert cluster.call("upload-data", "prices")[0] == 0
    assert [path.name for path in cluster.data.iterdir()] == ["prices"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 2, "nowhere: no such folder to upload"),
        (["empty"], 3, "empty has no files to upload"),
        (["linked"], 3, "linked/link is a link, which upload-data cannot transfer"),
        (["prices", "--name", "../runs"], 2, "--name '../runs'"),
        (["prices", "--name", ".incoming-1"], 2, "--name '.incoming-1'"),
    ],
)
def test_what_cannot_be_uploaded_is_refused_by_name(cluster, prices, words, code, said):
    (cluster.work / "empty").mkdir()
    (cluster.work / "linked").mkdir()
    (cluster.work / "linked/link").symlink_to("/etc/hostname")
    found, _, err = cluster.call("upload-data", *words)
    assert found == code
    assert said in err
    assert not (cluster.folder / "log").exists()  # kubectl was not even asked


def test_cluster_to_take_the_image_from_and_the_namespace_have_to_be_there(cluster, prices):
    (cluster.folder / "raycluster.json").unlink()
    for words, said in (((), "no RayCluster sp500"), (("--namespace", "lab"), "set --namespace")):
        code, _, err = cluster.call("upload-data", "prices", *words)
        assert (code, said in err) == (1, True)
    assert cluster.call("upload-data", "prices", "--image", "sp500:mine")[0] == 0
