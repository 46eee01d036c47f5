"""Checkpoints: whole or not there; a damaged one is never used, and the one before it is."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import CheckpointError
from sp500.tasks import catalog
from sp500.training.checkpoint import Checkpoints, Snapshot
from sp500.training.loop import FitResult, fit
from sp500.training.worker import SoloWorker

FILES = ("model.safetensors", "optimizer.safetensors", "manifest.json")
SIZE = 100


def snapshot(epoch: int, best: int | None = None) -> Snapshot:
    """Every number in it is the epoch's, so that mixed parts would show."""
    model = {"weight": torch.full((SIZE,), float(epoch)), "bias": torch.full((), epoch, dtype=torch.float64)}
    return Snapshot(
        model, {"0.exp_avg": torch.full((SIZE,), -float(epoch))}, {"epoch": epoch, "best_epoch": best or epoch}
    )


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", "fingerprint")


def assert_resumes_at(checkpoints: Checkpoints, epoch: int, best: int | None = None) -> None:
    found = checkpoints.resume()
    assert found is not None
    expected = snapshot(epoch, best)
    assert found[0].progress == expected.progress
    for tensors, other in ((found[0].model, expected.model), (found[0].optimizer, expected.optimizer)):
        assert tensors.keys() == other.keys()
        assert all(
            torch.equal(tensors[name], other[name]) and tensors[name].dtype == other[name].dtype for name in other
        )
    assert torch.equal(found[1]["weight"], torch.full((SIZE,), float(best or epoch)))


def newest(checkpoints: Checkpoints) -> Path:
    return sorted(checkpoints.folder.glob("epoch-*"))[-1]


def cut_to(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

    return damage


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut to nothing": cut_to(0.0),
    "cut in half": cut_to(0.5),
    "cut to 99%": cut_to(0.99),
    "one bit flipped": flip_a_bit,
    "deleted": Path.unlink,
}
BROKEN_MANIFESTS = {
    "empty object": "{}",
    "list": "[]",
    "null": "null",
    "no JSON": "epoch 3",
    "other schema": '{"version": 2, "sha256": "0"}',
}


def saved(checkpoints: Checkpoints, *epochs: int) -> Path:
    """The newest of the versions of these epochs."""
    for epoch in epochs:
        checkpoints.save(snapshot(epoch))
    return newest(checkpoints)


def test_saved_snapshot_comes_back_to_the_bit(checkpoints):
    assert checkpoints.resume() is None
    checkpoints.save(snapshot(1))
    assert_resumes_at(checkpoints, 1)
    for epoch in (2, 2):  # an epoch saved again replaces what was there
        checkpoints.save(snapshot(epoch))
        assert_resumes_at(checkpoints, 2)


def test_newest_snapshot_is_resumed_with_the_best_weights_up_to_it(checkpoints):
    for epoch, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        checkpoints.save(snapshot(epoch, best))
    assert_resumes_at(checkpoints, 5, best=2)
    assert torch.equal(checkpoints.best()["weight"], torch.full((SIZE,), 2.0))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_newest_version_is_passed_over_for_the_one_before(checkpoints, damage, file):
    damage(saved(checkpoints, 1, 2, 3) / file)
    assert_resumes_at(checkpoints, 2)


@pytest.mark.parametrize("manifest", [*BROKEN_MANIFESTS.values(), None], ids=[*BROKEN_MANIFESTS, "no folder"])
def test_broken_manifest_is_passed_over_for_the_version_before(checkpoints, manifest):
    version = saved(checkpoints, 1, 2, 3)
    (version / "manifest.json").write_text(manifest) if manifest else shutil.rmtree(version)
    assert_resumes_at(checkpoints, 2)


def test_damaged_newest_and_best_version_leaves_the_one_before_with_its_own_best(checkpoints):
    # Epoch 1 was the best until epoch 4 was; going back to epoch 3 means going back to the best weights of epoch 1.
    for epoch, best in ((1, 1), (2, 1), (3, 1), (4, 4)):
        checkpoints.save(snapshot(epoch, best))
    flip_a_bit(newest(checkpoints) / "model.safetensors")
    assert_resumes_at(checkpoints, 3, best=1)


def test_all_versions_damaged_is_as_if_there_were_none(checkpoints):
    saved(checkpoints, 1, 2)
    for path in checkpoints.folder.glob("epoch-*/model.safetensors"):
        flip_a_bit(path)
    assert checkpoints.resume() is None


@pytest.mark.parametrize("file", FILES)
def test_bit_flipped_anywhere_is_noticed(checkpoints, file):
    path = saved(checkpoints, 1, 2) / file
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.choice(len(whole), 60, replace=False):
        data = bytearray(whole)
        data[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(data)
        assert_resumes_at(checkpoints, 1)


@pytest.mark.parametrize("file", FILES)
def test_damaged_best_weights_are_refused_by_name(checkpoints, file):
    flip_a_bit(saved(checkpoints, 1) / file)
    with pytest.raises(CheckpointError, match=str(checkpoints.folder)):
        checkpoints.best()


def test_checkpoint_of_another_configuration_is_refused_by_name(checkpoints):
    saved(checkpoints, 1)
    with pytest.raises(CheckpointError, match=r"epoch-00001 .* other settings"):
        Checkpoints(checkpoints.folder, "other").resume()


def test_few_versions_are_kept_and_the_links_name_them(checkpoints):
    for epoch in range(1, 13):
        checkpoints.save(snapshot(epoch, min(epoch, 5)))
    kept = {path.name for path in checkpoints.folder.glob("epoch-*")}
    assert {"epoch-00012", "epoch-00011", "epoch-00005"} <= kept
    assert len(kept) <= 4
    assert (checkpoints.folder / "last").resolve().name == "epoch-00012"
    assert (checkpoints.folder / "best").resolve().name == "epoch-00005"
    assert {path.name for path in checkpoints.folder.iterdir()} == kept | {"last", "best"}


@pytest.mark.parametrize(("keep", "names"), [("all", range(1, 8)), (3, (2, 5, 6, 7)), (2, (2, 6, 7))])
def test_as_many_versions_are_kept_as_asked_for(tmp_path, keep, names):
    checkpoints = Checkpoints(tmp_path, "fingerprint", keep)
    for epoch in range(1, 8):
        checkpoints.save(snapshot(epoch, min(epoch, 2)))
    assert {path.name for path in tmp_path.glob("epoch-*")} == {f"epoch-{epoch:05d}" for epoch in names}
    assert_resumes_at(checkpoints, 7, best=2)


def inside(epoch: int, step: int, best: int) -> Snapshot:
    """Inside the epoch after `epoch`."""
    found = snapshot(step, best)
    return replace(found, progress={"epoch": epoch, "best_epoch": best, "step": step, "partial": {"steps": 1}})


def test_versions_inside_an_epoch_come_after_its_start_and_before_its_end(checkpoints):
    checkpoints.save(inside(0, 50, 0))
    found = checkpoints.resume()
    assert found is not None
    assert (found[0].progress["step"], found[1]) == (50, {})  # no epoch has ended: nothing is the best yet
    checkpoints.save(snapshot(1))
    assert_resumes_at(checkpoints, 1)
    for step in (150, 200, 250):
        checkpoints.save(inside(1, step, 1))
    found = checkpoints.resume()
    assert found is not None
    assert found[0].progress["step"] == 250
    assert torch.equal(found[1]["weight"], torch.ones(SIZE))
    names = ["epoch-00001", "epoch-00001-step-00000200", "epoch-00001-step-00000250"]
    assert sorted(path.name for path in checkpoints.folder.glob("epoch-*")) == names
    flip_a_bit(newest(checkpoints) / "model.safetensors")
    found = checkpoints.resume()
    assert found is not None
    assert found[0].progress["step"] == 200
    checkpoints.save(snapshot(2))
    assert_resumes_at(checkpoints, 2)


def test_version_whose_best_is_gone_is_passed_over(checkpoints):
    first = replace(snapshot(0), progress={"epoch": 0, "best_epoch": 0, "best_loss": 1.0, "step": 0})
    checkpoints.save(first)
    later = inside(0, 50, 0)
    checkpoints.save(replace(later, progress={**later.progress, "best_loss": 1.0}))
    shutil.rmtree(checkpoints.folder / "epoch-00000")
    assert checkpoints.resume() is None


def test_rest_of_a_killed_writer_with_the_same_process_number_is_no_obstacle(checkpoints):
    # In a container every start has the same process number.
    checkpoints.save(snapshot(1))
    rest = checkpoints.folder / f".epoch-00002.{os.getpid()}.tmp"
    shutil.copytree(newest(checkpoints), rest)
    assert_resumes_at(checkpoints, 1)
    checkpoints.save(snapshot(2))
    assert_resumes_at(checkpoints, 2)
    assert not rest.exists()


def test_rest_of_a_writer_killed_long_ago_is_cleared_away(checkpoints):
    # Else every kill in the middle of a checkpoint takes its size from the disk for good.
    checkpoints.save(snapshot(1))
    rest = checkpoints.folder / ".epoch-00002.999999999.tmp"
    shutil.copytree(newest(checkpoints), rest)
    checkpoints.save(snapshot(2))
    assert not rest.exists()


def test_copy_that_somebody_made_beside_the_versions_is_left_alone(checkpoints):
    checkpoints.save(snapshot(1))
    shutil.copytree(newest(checkpoints), checkpoints.folder / "epoch-00001-copy")
    assert_resumes_at(checkpoints, 1)
    checkpoints.save(snapshot(2))
    assert_resumes_at(checkpoints, 2)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to write beyond `size`: the next best thing to a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 500], ids=["at once", "in the middle"])
def test_write_that_fails_leaves_the_earlier_checkpoint_and_says_where_and_how_much_is_free(checkpoints, size):
    checkpoints.save(snapshot(1))
    with pytest.raises(CheckpointError, match=r"epoch-00002.* MiB free") as raised, files_of_at_most(size):
        checkpoints.save(snapshot(2))
    assert "make room" not in str(raised.value)  # there is room
    assert [path.name for path in checkpoints.folder.glob(".*")] == []
    assert_resumes_at(checkpoints, 1)
    checkpoints.save(snapshot(2))
    assert_resumes_at(checkpoints, 2)


def test_disk_that_is_full_at_any_step_is_named_and_a_checkpoint_is_left(make_disk):
    small_disk = make_disk("size=8m,nr_inodes=64")  # that many files, folders and links
    checkpoints, has_version = Checkpoints(small_disk / "checkpoints", "fingerprint"), set[bool]()
    for left in range(32):
        checkpoints.save(snapshot(1))
        fillers = [small_disk / str(number) for number in range(os.statvfs(small_disk).f_favail - left)]
        for filler in fillers:
            filler.touch()
        said = ""
        try:
            checkpoints.save(snapshot(2))
        except CheckpointError as error:
            said = str(error)
        if not said:
            break
        assert f"{checkpoints.folder}/epoch-00002: No space left on device (8 MiB free)" in said
        assert "make room" in said
        assert checkpoints.resume() is not None
        has_version.add((checkpoints.folder / "epoch-00002").exists())
        for filler in fillers:
            filler.unlink()
        checkpoints.save(snapshot(3))
        assert_resumes_at(checkpoints, 3)
        shutil.rmtree(checkpoints.folder)
    assert_resumes_at(checkpoints, 2)
    assert has_version == {False, True}  # full while the version was written, and when its link was made


def save_forever(folder: Path, first: int, started: Connection) -> None:
    checkpoints = Checkpoints(folder, "fingerprint")
    for epoch in range(first, first + 10_000):
        started.send(epoch)
        checkpoints.save(snapshot(epoch, max(1, epoch - epoch % 3)))


def test_writer_killed_at_any_moment_leaves_a_whole_checkpoint(checkpoints):
    fork, generator, epoch = multiprocessing.get_context("fork"), np.random.default_rng(0), 1
    for _ in range(12):
        here, there = fork.Pipe(duplex=False)
        writer = fork.Process(target=save_forever, args=(checkpoints.folder, epoch, there), daemon=True)
        writer.start()
        try:
            for _ in range(int(generator.integers(2, 6))):
                begun = here.recv()
        finally:
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
            here.close()
            there.close()
        found = checkpoints.resume()
        assert found is not None
        reached = found[0].progress["epoch"]
        assert reached >= begun - 1
        assert_resumes_at(checkpoints, reached, best=found[0].progress["best_epoch"])
        epoch = reached + 1


# Training over damaged checkpoints.


class Interrupted(Exception):
    """Stands for whatever ends a run from outside."""


def trained(dataset: Dataset, folder: Path | None, seen: list[int], last: int | None = None) -> FitResult:
    config = RunConfig.model_validate(
        {
            "model": {"kind": "mlp", "hidden": 8, "layers": 1, "dropout": 0.2},
            "train": {"epochs": 6, "batch_size": 20, "lr": 0.01, "early_stop_patience": 0},
        }
    )

    def on_epoch(metrics: object) -> None:
        seen.append(metrics.epoch)
        if metrics.epoch == last:
            raise Interrupted

    checkpoints = Checkpoints(folder, config.fingerprint) if folder else None
    return fit(catalog.task(config), dataset, config, SoloWorker(torch.device("cpu"), on_epoch), checkpoints)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_training_resumes_from_the_version_before_a_damaged_one_to_the_same_bits(
    linear_dataset, tmp_path, damage, file
):
    dataset, seen = linear_dataset(), []
    whole = trained(dataset, tmp_path / "whole", [])
    with pytest.raises(Interrupted):
        trained(dataset, tmp_path / "damaged", [], last=4)
    damage(tmp_path / "damaged" / "epoch-00004" / file)
    resumed = trained(dataset, tmp_path / "damaged", seen)
    assert seen == [4, 5, 6]
    assert [(epoch.train_loss, epoch.valid_loss) for epoch in resumed.epochs] == [
        (epoch.train_loss, epoch.valid_loss) for epoch in whole.epochs
    ]
    assert resumed.outputs["test"].tobytes() == whole.outputs["test"].tobytes()
    for link in ("last", "best"):
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (tmp_path / "damaged" / link / name).read_bytes() == (tmp_path / "whole" / link / name).read_bytes()


def test_every_version_damaged_makes_training_start_again_to_the_same_bits(linear_dataset, tmp_path):
    dataset, seen = linear_dataset(), []
    whole = trained(dataset, None, [])
    with pytest.raises(Interrupted):
        trained(dataset, tmp_path, [], last=4)
    for path in tmp_path.glob("epoch-*/manifest.json"):
        path.write_text(json.dumps({}))
    resumed = trained(dataset, tmp_path, seen)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert resumed.outputs["test"].tobytes() == whole.outputs["test"].tobytes()
