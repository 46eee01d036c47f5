"""Noisy copies of windows of any shape: what they are, in memory and in shards alike."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest

from sp500.config import DataConfig, RunConfig
from sp500.data.copied import Copied
from sp500.data.images import dataset as images
from sp500.data.images.settings import ImagesConfig
from sp500.data.shards import stream, writer
from sp500.data.shards.reader import Layout, ShardSet, as_binary, from_binary
from sp500.data.text import dataset as text
from sp500.data.text.settings import TextConfig
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.storage import Folder


def floats() -> Dataset:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(100, 3)).astype(np.float32) * [1, 10, 100]

    def part(first: int, last: int) -> Windows:
        starts = np.arange(last - first - 4)  # they overlap
        return Windows(rows[first:last].astype(np.float32), starts, starts.astype(np.float32), 5)

    return Dataset(part(0, 60), part(60, 80), part(80, 100))


DATA = {
    "images": lambda: images.dataset(ImagesConfig(), DataConfig()),
    "text": lambda: text.dataset(TextConfig(max_bytes=20_000, context=16)),
    "floats": floats,
}


def arrays(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    train = data.train
    return train.rows[train.starts[:, None] + np.arange(train.length)], train.targets


@pytest.fixture(params=DATA)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(kind: str) -> Dataset:
    return DATA[kind]()


def test_first_copy_is_the_data_and_the_others_are_near_it(kind, data):
    more = Copied(data, DataConfig(multiplier=3, noise=0.1)).materialise("float32")
    (x, y), (xs, ys) = arrays(data), arrays(more)
    count = len(x)
    assert (len(xs), more.card["windows"]["train"]) == (3 * count, 3 * count)
    np.testing.assert_array_equal(xs[:count], x)
    np.testing.assert_array_equal(ys[:count], y)
    for first in (count, 2 * count):
        copy = xs[first : first + count]
        assert copy.dtype == x.dtype
        if kind == "text":
            changed = (copy != x).mean()
            assert changed == pytest.approx(0.1, abs=0.02)
            np.testing.assert_array_equal(ys[first : first + count, :-1], copy[:, 1:])
        else:
            axes = tuple(range(x.ndim - 1))
            gap = (copy.astype(float) - x).std(axis=axes) / x.std(axis=axes)
            assert gap == pytest.approx(
                0.1, rel=0.35 if kind == "images" else 0.1
            )  # images: rounded, and kept in range
            np.testing.assert_array_equal(ys[first : first + count], y)
    assert not np.array_equal(xs[count : 2 * count], xs[2 * count :])
    for name in ("valid", "test"):
        assert getattr(more, name) is getattr(data, name)


def test_shards_hold_what_memory_does_in_its_order(data, tmp_path):
    ready = Copied(data, DataConfig(multiplier=3))
    source = ready.source()
    shards = writer.write(source, str(tmp_path))
    assert len(shards.shards) >= writer.SHARDS_AT_LEAST
    assert (shards.windows, source.rows) == (source.windows, source.windows * data.window)
    chunks = [shards.read(shard) for shard in shards.shards]
    xs, ys = arrays(ready.materialise("float32"))
    found = [one.rows[one.starts[:, None] + np.arange(data.window)] for one in chunks]
    np.testing.assert_array_equal(np.concatenate(found), xs)
    np.testing.assert_array_equal(np.concatenate([one.targets for one in chunks]), ys)
    assert [one.first for one in chunks] == [sum(map(len, found[:number])) for number in range(len(found))]


def test_set_is_the_same_bytes_again_and_another_for_other_settings(data, tmp_path):
    prints = {
        Copied(data, config).source().fingerprint
        for config in (
            DataConfig(multiplier=2),
            DataConfig(multiplier=3),
            DataConfig(multiplier=2, noise=0.2),
            DataConfig(multiplier=2, seed=1),
        )
    }
    assert len(prints) == 4
    config = DataConfig(multiplier=2)
    first, second = (writer.write(Copied(data, config).source(), str(tmp_path / name)) for name in ("a", "b"))
    assert [one.sha256 for one in first.shards] == [one.sha256 for one in second.shards]
    assert Folder(first.uri).read("manifest.json") == Folder(second.uri).read("manifest.json")


def test_large_windows_are_shuffled_in_smaller_buffers():
    prices, pictures = Layout(30, (6,), "float32"), Layout(1, (224, 224, 3), "uint8", whole=True)
    assert stream.buffer_windows(prices) == stream.BUFFER_WINDOWS
    held = stream.buffer_windows(pictures) * pictures.line_bytes
    assert stream.BUFFER_BYTES // 2 < held <= stream.BUFFER_BYTES


def test_column_of_bytes_gives_its_numbers_back_also_from_its_middle():
    numbers = np.random.default_rng(0).normal(size=(7, 2, 3))
    column = pa.chunked_array([as_binary(numbers[:3]), as_binary(numbers[3:])])
    np.testing.assert_array_equal(from_binary(column, "float64", (2, 3)), numbers)
    np.testing.assert_array_equal(from_binary(column.slice(2, 4), "float64", (2, 3)), numbers[2:6])
    np.testing.assert_array_equal(from_binary(column.slice(4), "float64", (2, 3)), numbers[4:])


def test_prices_resampled_by_blocks_have_no_meaning_here(data):
    with pytest.raises(DataError, match="use noise"):
        Copied(data, DataConfig(multiplier=2, augment="bootstrap")).materialise("float32")


def test_set_of_an_earlier_format_is_refused_with_the_way_out(tmp_path):
    manifest = {"format": 1, "fingerprint": "0" * 16, "window": 30, "features": 6, "windows": 0, "shards": []}
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))
    with pytest.raises(DataError, match=r"format 1, this version reads 2; remove it and write it again: .*--out"):
        ShardSet.open(str(tmp_path))


@pytest.mark.parametrize("task", ["images", "language"])
def test_copies_count_for_the_fingerprint_only_where_there_are_any(task):
    model = {"kind": "cnn" if task == "images" else "gpt"}

    def fingerprint(**data: object) -> str:
        return RunConfig.model_validate({"task": task, "model": model, "data": data}).fingerprint

    assert fingerprint() == fingerprint(noise=0.5)
    assert len({fingerprint(), fingerprint(multiplier=2), fingerprint(multiplier=2, noise=0.5)}) == 3
