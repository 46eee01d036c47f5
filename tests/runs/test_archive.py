"""A run's archive: whole or not trusted, on a disk and in an object store; and the way back."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forks
import object_store
import pyarrow.fs
import pytest
import torch

from sp500 import cli
from sp500.config import IOConfig, RunConfig
from sp500.errors import CheckpointError, ConfigError, RunExists, Unreachable
from sp500.runs import checksums, versions
from sp500.runs.archive.copying import Copier
from sp500.runs.archive.fetching import catch_up, fetch
from sp500.runs.archive.layout import Archived, Listing
from sp500.runs.record import EpochMetrics, make_record
from sp500.runs.store import Run, RunStore
from sp500.runs.versions import Manifest
from sp500.schema import validate
from sp500.storage import Entry, Folder
from sp500.training.checkpoint import Checkpoints, Snapshot

ROOT = Path(__file__).parents[2]
CONFIG = RunConfig()
NO_MOTO = pytest.mark.skipif(not object_store.SERVER.exists(), reason="moto is not installed (scripts/moto does it)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_store.serving(tmp_path_factory.mktemp("moto")) as address:
        yield address


class Place:
    """An archive, seen without the code under test."""

    def __init__(self, uri: str, files: pyarrow.fs.FileSystem, path: str) -> None:
        self.uri, self._files, self._path = uri, files, path

    def read(self) -> dict[str, bytes]:
        selector = pyarrow.fs.FileSelector(self._path, recursive=True, allow_not_found=True)
        found = [info.path for info in self._files.get_file_info(selector) if info.is_file]
        return {path.removeprefix(f"{self._path}/"): self._files.open_input_stream(path).read() for path in found}

    def write(self, name: str, data: bytes) -> None:
        self._files.create_dir(f"{self._path}/{name}".rpartition("/")[0])
        with self._files.open_output_stream(f"{self._path}/{name}") as file:
            file.write(data)

    def delete(self, name: str) -> None:
        self._files.delete_file(f"{self._path}/{name}")

    def flip_a_bit(self, name: str) -> None:
        data = bytearray(self.read()[name])
        data[len(data) // 2] ^= 1
        self.write(name, bytes(data))


@pytest.fixture(params=["file", pytest.param("s3", marks=NO_MOTO)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "file":
        return Place(f"file://{tmp_path}/archive", pyarrow.fs.LocalFileSystem(), f"{tmp_path}/archive")
    address = request.getfixturevalue("server")
    for name, value in object_store.environment(address).items():
        monkeypatch.setenv(name, value)
    path = f"{object_store.BUCKET}/{tmp_path.name}"
    return Place(f"s3://{path}", object_store.files(address), path)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


@contextmanager
def begun(store: RunStore, config: RunConfig = CONFIG) -> Iterator[Run]:
    """A run that has a configuration and a start."""
    with store.open("a", resume=True) as run:
        run.write_config(config.model_dump(mode="json"))
        run.write_start(make_record(config, name="a", experiment="train", arm="solo", status="stopped"))
        yield run


def train(run: Run, *epochs: int, best: int = 1) -> None:
    """Leave what these epochs would: a line, and a version with numbers of their own."""
    for epoch in epochs:
        run.append_epoch(EpochMetrics(epoch=epoch, train_loss=1.0, valid_loss=None, samples=1, seconds=1.0))
        weights = {"weight": torch.full((100,), float(epoch))}
        progress = {"epoch": epoch, "best_epoch": min(best, epoch), "step": epoch}
        Checkpoints(run.checkpoints, "data").save(Snapshot(weights, weights, progress))


def end(run: Run) -> None:
    run.write_record(make_record(CONFIG, name="a", experiment="train", arm="solo"))


def copy(run: Run, place: Place) -> None:
    Copier(place.uri, run, CONFIG.fingerprint).end()


def contents(folder: Path) -> dict[str, bytes]:
    visible = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    names = {path.relative_to(folder).as_posix(): path for path in visible if not path.name.startswith(".")}
    return {name: path.read_bytes() for name, path in names.items() if "last/" not in name and "best/" not in name}


def whole_versions(held: dict[str, bytes]) -> set[str]:
    """Names of the versions that have a manifest; its checksums are checked here."""
    names = {name.removesuffix("/manifest.json") for name in held if name.endswith("/manifest.json")}
    for name in names:
        for file, expected in json.loads(held[f"{name}/manifest.json"])["files"].items():
            assert hashlib.sha256(held[f"{name}/{file}"]).hexdigest() == expected
    return {Path(name).name for name in names}


def test_fetched_run_is_the_one_that_was_archived(store, place, tmp_path):
    with begun(store) as run:
        train(run, 1, 2, 3)
        end(run)
        copy(run, place)
    fetched = fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri)
    assert contents(tmp_path / "elsewhere" / "a") == contents(run.path)
    assert [(run.checkpoints / link).readlink().name for link in ("last", "best")] == ["epoch-00003", "epoch-00001"]
    assert (len(fetched.versions), fetched.damaged) == (3, ())
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["a"]
    assert RunStore(tmp_path / "elsewhere").record("a") == run.record()
    assert fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri).files == ()


def test_database_of_a_search_is_copied_at_the_end_without_its_journal(store, place):
    with begun(store) as run:
        for name in ("optuna.db", "optuna.db-journal", "trials.jsonl"):
            (run.path / name).write_text(name)
        copy(run, place)
    written = {"archive.json", "config.yaml", "started.json"}
    assert {Path(name).name for name in place.read()} - written == {"optuna.db", "trials.jsonl"}


def test_versions_that_the_run_removed_are_removed_from_the_archive(store, place):
    with begun(store) as run:
        for epoch in range(1, 6):
            train(run, epoch, best=2)
            copy(run, place)
    held = place.read()
    assert whole_versions(held) == {"epoch-00002", "epoch-00004", "epoch-00005"}
    assert {name.split("/")[2] for name in held if "/epoch-" in name} == whole_versions(held)


def test_version_that_the_run_removes_while_it_is_copied_is_whole(store, place, monkeypatch):
    upload = Folder.upload

    def slow(folder: Folder, source: object, name: str) -> str:
        if "epoch-00001" in name:
            shutil.rmtree(run.checkpoints / "epoch-00001", ignore_errors=True)
        return upload(folder, source, name)

    with begun(store) as run:
        copy(run, place)
        train(run, 1)
        monkeypatch.setattr(Folder, "upload", slow)
        copy(run, place)
        assert not (run.checkpoints / "epoch-00001").exists()
    assert whole_versions(place.read()) == {"epoch-00001"}


def test_archive_does_not_grow_where_checkpoints_come_faster_than_uploads(store, place, monkeypatch):
    upload, held = Folder.upload, list[int]()

    def slow(folder: Folder, source: object, name: str) -> str:
        """Three epochs pass during each upload of weights; the second is the best."""
        if "model" in name and len(held) < 5:
            held.append(len(whole_versions(place.read())))
            train(run, *range(3 * len(held), 3 * len(held) + 3), best=2)
        return upload(folder, source, name)

    with begun(store) as run:
        train(run, 1, 2, best=2)
        monkeypatch.setattr(Folder, "upload", slow)
        copy(run, place)
    assert (len(held), max(held)) == (5, 2)
    assert whole_versions(place.read()) == {"epoch-00002", "epoch-00016", "epoch-00017"}


def test_resumed_run_whose_archive_is_further_goes_on_from_there(store, place, tmp_path):
    with begun(store) as run:
        train(run, 1, 2)
        shutil.copytree(run.path, tmp_path / "elsewhere" / "a", symlinks=True)
        train(run, 3, 4)
        copy(run, place)
    for folder in ("elsewhere", "empty"):
        with RunStore(tmp_path / folder).open("a", resume=True) as other:
            catch_up(place.uri, other, CONFIG.fingerprint, resume=True)
            found = Checkpoints(other.checkpoints, "data").resume()
        assert found is not None
        assert (found[0].progress["epoch"], float(found[1]["weight"][0])) == (4, 1.0)
        assert [epoch.epoch for epoch in other.epochs()] == [1, 2, 3, 4]


def test_run_that_is_further_than_its_archive_stays_as_it_is(store, place):
    with begun(store) as run:
        train(run, 1, 2)
        copy(run, place)
        train(run, 3)
        before = contents(run.path)
        catch_up(place.uri, run, CONFIG.fingerprint, resume=True)
        assert contents(run.path) == before


def test_damaged_newest_version_is_replaced_by_the_archives(store, place):
    with begun(store) as run:
        train(run, 1, 2)
        copy(run, place)
        (run.checkpoints / "epoch-00002" / "model.safetensors").write_bytes(b"")
        catch_up(place.uri, run, CONFIG.fingerprint, resume=True)
        found = Checkpoints(run.checkpoints, "data").resume()
    assert found is not None
    assert found[0].progress["epoch"] == 2


def test_name_that_the_archive_has_is_taken(store, place, tmp_path):
    other = RunConfig(train={"seed": 7})
    with begun(store) as run:
        train(run, 1)
        copy(run, place)
    with begun(RunStore(tmp_path / "other"), other) as run:
        with pytest.raises(RunExists, match="--resume"):
            catch_up(place.uri, run, CONFIG.fingerprint, resume=False)
        with pytest.raises(ConfigError, match="runs fetch a"):
            catch_up(place.uri, run, other.fingerprint, resume=True)
    before = place.read()
    with begun(RunStore(tmp_path / "other"), other) as run:
        Copier(place.uri, run, other.fingerprint).end()
    assert place.read() == before
    with pytest.raises(RunExists, match="other settings"):
        fetch(RunStore(tmp_path / "other"), "a", place.uri)


@pytest.mark.parametrize("name", ["epochs.jsonl", "record.json", "archive.json"])
def test_damaged_or_missing_file_of_the_archive_is_named_and_nothing_is_fetched(store, place, tmp_path, name):
    with begun(store) as run:
        train(run, 1)
        end(run)
        copy(run, place)
    place.flip_a_bit(f"a/{name}")
    with pytest.raises(CheckpointError, match=f"a/{name} is damaged"):
        fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri)
    assert list(tmp_path.glob("elsewhere/*")) == []
    if name == "epochs.jsonl":
        place.delete("a/epochs.jsonl")
        with pytest.raises(CheckpointError, match=r"a/epochs\.jsonl is missing"):
            fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri)


def test_damaged_version_is_left_out_and_named(store, place, tmp_path, capfd):
    with begun(store) as run:
        train(run, 1, 2)
        copy(run, place)
    place.flip_a_bit("a/checkpoints/epoch-00002/model.safetensors")
    words = ["runs", "fetch", "a", "--from", place.uri, "--runs-dir", str(tmp_path / "elsewhere"), "--json"]
    assert cli.main(words) == 1
    told = json.loads(capfd.readouterr().out)
    assert [Path(name).name for name in told["versions"]] == ["epoch-00001"]
    assert "epoch-00002/model.safetensors" in told["damaged"][0]
    found = Checkpoints(tmp_path / "elsewhere" / "a" / "checkpoints", "data").resume()
    assert found is not None
    assert found[0].progress["epoch"] == 1


def test_version_without_a_manifest_is_not_there(store, place, tmp_path):
    """As a copy that is killed leaves it; the next copy completes it."""
    with begun(store) as run:
        train(run, 1, 2)
        copy(run, place)
        place.delete("a/checkpoints/epoch-00002/manifest.json")
        place.write("a/checkpoints/epoch-00002/model.safetensors", b"half")
        place.write("a/.epochs.jsonl.0123456789abcdef.tmp", b"half")
        assert len(fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri).versions) == 1
        copy(run, place)
    assert whole_versions(place.read()) == {"epoch-00001", "epoch-00002"}
    assert not [name for name in place.read() if name.endswith(".tmp")]


def test_copy_killed_before_a_file_was_replaced_leaves_no_damage(store, place, tmp_path):
    with begun(store) as run:
        train(run, 1)
        copy(run, place)
        listing = Archived(place.uri, run).listing()
        assert listing is not None
        both = {name: (*hashes, "0" * 64) for name, hashes in listing.files.items()} | {"trials.jsonl": ("1" * 64,)}
        place.write("a/archive.json", checksums.seal(listing.model_copy(update={"files": both})).encode())
        assert fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri).damaged == ()
        assert contents(tmp_path / "elsewhere" / "a") == contents(run.path)


def test_copy_killed_after_its_listing_copies_what_that_announced(store, place):
    with begun(store) as run:
        train(run, 1)
        copy(run, place)
        place.delete("a/config.yaml")
        end(run)
        copy(run, place)
        assert {name.removeprefix("a/") for name in place.read()} == {*contents(run.path), "archive.json"}


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "x//escaped", "x/./y", "x\0y", ".lock", ""])
def test_listing_that_leads_out_of_the_run_is_refused(store, place, tmp_path, name):
    listing = Listing(run="a", fingerprint="f", files={name: (hashlib.sha256(b"x").hexdigest(),)})
    place.write("escaped", b"x")
    place.write("a/archive.json", checksums.seal(listing).encode())
    with pytest.raises(CheckpointError, match="it names"):
        fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri)


@pytest.mark.parametrize(
    "folder", ["checkpoints/epoch-00001/../../../victim", "..", "checkpoints/.", "checkpoints/", "", "/tmp/victim"]
)
def test_version_in_the_store_that_leads_out_of_the_run_is_refused_and_nothing_is_removed(
    store, tmp_path, monkeypatch, caplog, folder
):
    """Keys of S3 may hold what no path of a disk can."""
    uri = f"file://{tmp_path}/archive"
    with begun(store) as run:
        train(run, 1)
        Copier(uri, run, CONFIG.fingerprint).end()
    victims = [tmp_path / "elsewhere" / "victim" / "epoch-00003", tmp_path / "archive" / "victim" / "epoch-00003"]
    for victim in victims:
        victim.mkdir(parents=True)
        (victim / "precious").write_text("x")
    entries = Folder.entries

    def with_another(folder_there: Folder) -> dict[str, Entry]:
        here = entries(folder_there)
        return {**here, f"{folder}/epoch-00003/manifest.json": here["config.yaml"]}

    monkeypatch.setattr(Folder, "entries", with_another)
    with pytest.raises(CheckpointError, match="it names"):
        fetch(RunStore(tmp_path / "elsewhere"), "a", uri)
    with begun(store) as run:
        train(run, 4)
        Copier(uri, run, CONFIG.fingerprint).end()
    assert "it names" in caplog.text
    assert all((victim / "precious").exists() for victim in victims)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["victim"]


def test_version_in_a_hidden_folder_is_not_one_of_the_run(store, place, tmp_path):
    with begun(store) as run:
        train(run, 1)
        copy(run, place)
        for name, data in place.read().items():
            if "/epoch-00001/" in name:
                place.write(name.replace("checkpoints", ".lock"), data)
    assert fetch(RunStore(tmp_path / "elsewhere"), "a", place.uri).versions == ("checkpoints/epoch-00001",)
    assert not (tmp_path / "elsewhere" / "a" / ".lock").exists()


@pytest.mark.parametrize("file", ["../../x", "/tmp/x", "a/b", ".x", ""])
def test_manifest_that_leads_out_of_its_version_is_damage(tmp_path, file):
    digest = hashlib.sha256(b"x").hexdigest()
    (tmp_path / "manifest.json").write_text(Manifest("f", {}, {file: digest}).dump())
    with pytest.raises(ValueError, match="files of a version"):
        versions.check(tmp_path)


def test_run_that_the_archive_lacks_is_named(place, store):
    with pytest.raises(ConfigError, match=r"/b is not a run"):
        fetch(store, "b", place.uri)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> str:
    """An archive whose server refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for name, value in object_store.environment(address).items():
        monkeypatch.setenv(name, value)
    return "s3://bucket/gone"


def test_archive_that_does_not_answer_is_a_warning_and_no_reason_to_start_anew(store, gone, caplog):
    with store.open("a", resume=True) as run, pytest.raises(Unreachable, match="--resume: run 'a'"):
        catch_up(gone, run, CONFIG.fingerprint, resume=True)
    with begun(store) as run, caplog.at_level(logging.WARNING):
        train(run, 1)
        catch_up(gone, run, CONFIG.fingerprint, resume=True)
        copy(run, Place(gone, pyarrow.fs.LocalFileSystem(), ""))
    assert "not whole" in caplog.messages[-1]
    with pytest.raises(Unreachable, match=gone):
        fetch(store, "a", gone)


@NO_MOTO
def test_training_ends_well_without_its_archive_and_is_copied_afterwards(gone, server, tmp_path):
    script = [str(ROOT / "experiments" / "train.py"), "--runs-dir", str(tmp_path / "runs")]
    script += ["--task", "synthetic", "--train.epochs", "2", "--name", "a", "--io.archive", gone, "--json"]
    without = forks.run(script)
    assert (without.returncode, json.loads(without.stdout)["status"]) == (0, "ok")
    assert "run a is not whole" in without.stderr
    environment = {**os.environ, **object_store.environment(server)}
    again = forks.run([*script, "--resume"], env=environment)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(without.stdout)
    held = Place(gone, object_store.files(server), "bucket/gone").read()
    assert whole_versions(held) == {path.name for path in (tmp_path / "runs/a/checkpoints").glob("epoch-*")}
    assert held["a/record.json"] == (tmp_path / "runs" / "a" / "record.json").read_bytes()


@pytest.mark.parametrize(
    "uri",
    [
        *("s3:/x", "file://folder/x", "gs://bucket", "folder", "s3://", "file:///", "s3://KEY@bucket"),
        *("file:///data/what?ever", "file:///data/a#b"),
        *("s3://KEY:S3CR3T@bucket/x", "s3://bucket?access_key=KEY", "s3://bucket/x?region=r&session_token=TOKEN"),
    ],
)
def test_address_of_no_archive_is_refused_by_the_name_of_its_field(uri, capfd):
    with pytest.raises(ConfigError, match=r"\Aio: archive: ") as raised:
        validate(IOConfig, {"archive": uri}, "io")
    assert cli.main(["runs", "fetch", "a", "--from", uri]) == 2
    said = capfd.readouterr().err
    assert "--from: " in said
    for word in ("S3CR3T", "TOKEN", "access_key=KEY"):
        assert word not in str(raised.value) + said


def test_archive_where_the_run_lies_is_refused(store):
    with begun(store) as run, pytest.raises(ConfigError, match="run itself"):
        catch_up(f"file://{store.root}", run, CONFIG.fingerprint, resume=True)
