"""Windows prepared elsewhere: taken as they are, cut in order, and refused by file and array."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp500.config import DataConfig, RunConfig
from sp500.data.sources import arrays
from sp500.data.windows import Windows
from sp500.errors import DataError
from sp500.tasks import catalog


@pytest.fixture
def good() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "X_train": generator.normal(5, 2, (40, 6, 3)),
        "y_train": generator.standard_normal(40),
        "X_test": generator.normal(5, 2, (10, 6, 3)),
        "y_test": generator.standard_normal(10),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(content: dict[str, Any], how: Callable[..., None] = np.savez) -> Path:
        how(tmp_path / "windows.npz", **content)
        return tmp_path / "windows.npz"

    return save


def contents(windows: Windows) -> np.ndarray:
    return np.stack([windows.rows[start : start + windows.length] for start in windows.starts])


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_good_file_is_read_as_it_is(good, saved, how):
    found = arrays.read(saved(good, how))
    for name, values in good.items():
        np.testing.assert_array_equal(found[name], values)


def test_validation_is_the_last_part_in_the_order_given(good, saved):
    config = DataConfig(npz_path=saved(good), valid_from_train=0.25, norm="none")
    dataset = arrays.dataset(config, "float64", direction=False)
    assert dataset.valid is not None
    np.testing.assert_array_equal(contents(dataset.train), good["X_train"][:30])
    np.testing.assert_array_equal(contents(dataset.valid), good["X_train"][30:])
    np.testing.assert_array_equal(contents(dataset.test), good["X_test"])
    np.testing.assert_array_equal(dataset.valid.targets, good["y_train"][30:])


def test_scaling_is_fitted_on_the_training_part_alone(good, saved):
    config = DataConfig(npz_path=saved(good), valid_from_train=0.25)
    dataset = arrays.dataset(config, "float64", direction=False)
    part = good["X_train"][:30].reshape(-1, 3)
    expected = (good["X_test"] - part.mean(axis=0)) / part.std(axis=0)
    np.testing.assert_allclose(contents(dataset.test), expected)
    np.testing.assert_allclose(dataset.test.targets * dataset.target_scale, good["y_test"])
    assert dataset.train.targets.std() == pytest.approx(1.0)


@pytest.mark.parametrize("fraction", [0.0, 0.01])
def test_no_validation_part_is_none(good, saved, fraction):
    dataset = arrays.dataset(DataConfig(npz_path=saved(good), valid_from_train=fraction), "float32", direction=False)
    assert dataset.valid is None
    assert len(dataset.train) == 40


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_number_type_is_the_one_asked_for(good, saved, dtype):
    dataset = arrays.dataset(DataConfig(npz_path=saved(good)), dtype, direction=False)
    assert (dataset.train.rows.dtype, dataset.train.targets.dtype) == (dtype, dtype)


@pytest.mark.parametrize("kind", [int, float, bool, "float32"])
def test_targets_of_0_and_1_alone_make_the_task_direction(good, saved, kind):
    signs = {name: (values > 0).astype(kind) if name.startswith("y") else values for name, values in good.items()}
    assert catalog.resolve(RunConfig(data=DataConfig(npz_path=saved(signs)))).task == "direction"
    assert catalog.resolve(RunConfig(data=DataConfig(npz_path=saved(good)))).task == "returns"
    config = RunConfig(task="direction", data=DataConfig(npz_path=saved(good)))
    with pytest.raises(DataError, match="y_train"):
        catalog.task(config).prepare(config)


def test_two_classes_that_are_not_0_and_1_are_noted(good, saved):
    signs = {name: np.where(values > 0, 1, -1) if name.startswith("y") else values for name, values in good.items()}
    for content, count in ((signs, 1), (good, 0)):
        config = RunConfig(data=DataConfig(npz_path=saved(content)))
        notes = catalog.task(config).prepare(config).card["notes"]
        assert [note[:34] for note in notes] == ["y_train has two values, -1 and 1, "][:count]


def test_targets_as_one_column_are_taken(good, saved):
    found = arrays.read(saved({**good, "y_train": good["y_train"][:, None]}))
    np.testing.assert_array_equal(found["y_train"], good["y_train"])


def test_card_knows_the_content_not_the_name(good, tmp_path):
    hashes = []
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        np.savez(tmp_path / f"{name}.npz", **{**good, "y_test": good["y_test"] * factor})
        config = DataConfig(npz_path=tmp_path / f"{name}.npz")
        hashes.append(arrays.dataset(config, "float32", direction=False).card["sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


def with_bad_value(values: np.ndarray, bad: float) -> np.ndarray:
    values = values.copy()
    values.reshape(len(values), -1)[7, -1] = bad
    return values


CHANGES: dict[str, tuple[Callable[[dict[str, np.ndarray]], dict[str, Any]], str]] = {
    "NaN": (lambda good: {"X_train": with_bad_value(good["X_train"], np.nan)}, "X_train row 7"),
    "infinite target": (lambda good: {"y_test": with_bad_value(good["y_test"], np.inf)}, "y_test row 7"),
    "text": (lambda good: {"X_test": good["X_test"].astype(str)}, "X_test"),
    "objects": (lambda good: {"y_train": good["y_train"].astype(object)}, "plain arrays"),
    "complex": (lambda good: {"X_train": good["X_train"] * 1j}, "X_train"),
    "two axes": (lambda good: {"X_train": good["X_train"][:, 0]}, "X_train"),
    "fewer targets": (lambda good: {"y_train": good["y_train"][:-1]}, "y_train"),
    "one target for all": (lambda good: {"y_train": np.array(5.0)}, "y_train"),
    "two targets each": (lambda good: {"y_train": np.stack([good["y_train"]] * 2, axis=1)}, "y_train"),
    "no samples": (lambda good: {"X_test": good["X_test"][:0], "y_test": good["y_test"][:0]}, "X_test"),
    "no days": (lambda good: {"X_train": good["X_train"][:, :0], "X_test": good["X_test"][:, :0]}, "X_train"),
    "no features": (lambda good: {"X_train": good["X_train"][..., :0], "X_test": good["X_test"][..., :0]}, "X_train"),
    "other features": (lambda good: {"X_test": good["X_test"][..., :2]}, "X_train and X_test"),
    "other window": (lambda good: {"X_test": good["X_test"][:, :3]}, "X_train and X_test"),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES)
def test_bad_array_is_refused_by_file_and_name(good, saved, change, named):
    path = saved({**good, **change(good)})
    with pytest.raises(DataError) as caught:
        arrays.read(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", arrays.NAMES)
def test_missing_array_is_named(good, saved, name):
    with pytest.raises(DataError, match=f"has no {name}"):
        arrays.read(saved({key: value for key, value in good.items() if key != name}))


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_damaged_file_is_refused_or_read_right_wherever_a_bit_flipped(good, saved, how):
    path = saved(good, how)
    data = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.integers(len(data), size=150):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        try:
            found = arrays.read(path)
        except DataError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert all(np.array_equal(found[name], values) for name, values in good.items())


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_cut_off_file_is_refused_by_name(good, saved, share):
    path = saved(good)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(DataError, match=str(path)):
        arrays.read(path)


def test_single_array_and_missing_file_are_refused_by_name(good, tmp_path):
    np.save(tmp_path / "windows.npy", good["X_train"])
    for name, said in (("windows.npy", ""), ("none.npz", "no such file")):
        with pytest.raises(DataError, match=f"{tmp_path / name}.*{said}"):
            arrays.read(tmp_path / name)
