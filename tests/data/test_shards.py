"""Shards: the same bytes whoever writes them, whole or refused by name, exact windows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import numpy as np
import pytest

from sp500.config import DataConfig
from sp500.data import augment, pipeline
from sp500.data.prices import Prices
from sp500.data.shards.reader import ShardSet
from sp500.data.shards.writer import SeriesSource, write, write_shard
from sp500.errors import DataError


@pytest.fixture(scope="module")
def prepared(bundled_stocks: Prices) -> pipeline.Prepared:
    return pipeline.prepare(DataConfig(tickers=("AAPL", "KO", "GE"), start="2010-01-01", multiplier=7), direction=False)


@pytest.fixture(scope="module")
def source(prepared: pipeline.Prepared) -> SeriesSource:
    return prepared.source()


@pytest.fixture
def written(source: SeriesSource, tmp_path: Path) -> ShardSet:
    return write(source, str(tmp_path / "set"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def windows_of(shards: ShardSet) -> tuple[np.ndarray, np.ndarray]:
    x, y = [], []
    for shard in shards.shards:
        chunk = shards.read(shard)
        x += [chunk.rows[start : start + shards.layout.window] for start in chunk.starts]
        y += list(chunk.targets)
    return np.array(x), np.array(y)


def test_windows_of_all_shards_are_those_of_the_copied_training_series(prepared, written):
    x, y = [], []
    for number in range(7):
        for one in prepared.train:
            copy = augment.copy(one, number, prepared.how)
            rows = (copy.x - prepared.scaler.shift) / prepared.scaler.scale
            for end in range(29, len(rows)):
                if np.isfinite(copy.y[end]):
                    x.append(rows[end - 29 : end + 1])
                    y.append(copy.y[end] / prepared.target_scale)
    found_x, found_y = windows_of(written)
    np.testing.assert_array_equal(found_x, np.array(x, np.float32))
    np.testing.assert_array_equal(found_y, np.array(y, np.float32))
    assert written.windows == len(y) == prepared.source().windows


def test_nothing_after_the_training_dates_is_in_a_shard(prepared, source):
    last = prepared.cut.train[1]
    later = [replace_future(one, last) for one in prepared.table.series]
    assert any((one.x != other.x).any() for one, other in zip(prepared.table.series, later, strict=True))
    again = pipeline.fit(
        prepared.prices, type(prepared.table)(prepared.table.names, tuple(later)), prepared.config, direction=False
    )
    assert again.source().fingerprint == source.fingerprint
    assert again.source().table(3)[0].equals(source.table(3)[0])


def replace_future(series: augment.Series, last: np.datetime64) -> augment.Series:
    future = (series.dates > last)[:, None]
    return augment.Series(series.ticker, series.dates, np.where(future, series.x * 7, series.x), series.y)


def test_complete_set_is_reused_and_another_one_refused(prepared, source, written, tmp_path):
    def nobody(numbers: object) -> list:
        raise AssertionError("a complete set is not written again")

    assert write(source, written.uri, nobody) == written
    other = pipeline.fit(
        prepared.prices, prepared.table, prepared.config.model_copy(update={"noise": 0.2}), direction=False
    ).source()
    with pytest.raises(DataError, match="holds another set"):
        write(other, written.uri)


def test_manifest_is_written_last(source, tmp_path):
    class Killed(Exception):
        pass

    def half(numbers: range) -> list:
        for number in list(numbers)[:5]:
            write_shard(source, number, str(tmp_path))
        raise Killed

    with pytest.raises(Killed):
        write(source, str(tmp_path), half)
    assert len(list(tmp_path.iterdir())) == 5
    with pytest.raises(DataError, match="not complete"):
        ShardSet.open(str(tmp_path))


WRITER = """
import sys, pickle
from sp500.data.shards import writer
with open(sys.argv[1], "rb") as file:
    source = pickle.load(file)
writer.write(source, sys.argv[2])
"""


def test_killed_writer_leaves_a_set_that_is_completed_to_the_same_bytes(source, written, tmp_path):
    import pickle

    (tmp_path / "source.pickle").write_bytes(pickle.dumps(source))
    (tmp_path / "writer.py").write_text(WRITER)
    target = tmp_path / "killed"
    left = []
    for kill in range(10):
        process = forks.Script([str(tmp_path / "writer.py"), str(tmp_path / "source.pickle"), str(target)])
        while process.poll() is None and len(list(target.glob("*.parquet"))) <= kill * 2:
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        left.append(len(list(target.glob("*.parquet"))))
    assert any(0 < shards < len(written.shards) for shards in left), left
    write(source, str(target))
    whole = {name: data for name, data in contents(target).items() if not name.startswith(".")}
    assert whole == contents(Path(written.uri))


DAMAGE = {
    "cut to nothing": lambda data: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "cut at the end": lambda data: data[:-1],
    "flipped at the start": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "flipped in the middle": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    "flipped at the end": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "missing": None,
    "foreign": lambda data: b"PAR1 of somebody else".ljust(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("number", [0, 11])
def test_bad_shard_is_refused_by_name_and_skipped_when_asked(written, damage, number):
    path = Path(written.uri) / f"shard-{number:05d}.parquet"
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    with pytest.raises(DataError, match=path.name):
        windows_of(ShardSet.open(written.uri))
    kept = ShardSet.open(written.uri, skip_bad=1)
    assert len(kept.dropped) == 1
    assert path.name in kept.dropped[0]
    assert kept.windows == written.windows - written.shards[number].windows == len(windows_of(kept)[1])


@pytest.mark.parametrize("change", ["windows", "segments", "nonsense", "missing"])
def test_bad_manifest_is_refused_by_name(written, change):
    path = Path(written.uri) / "manifest.json"
    manifest = json.loads(path.read_text())
    if change == "windows":
        manifest["windows"] += 1
    if change == "segments":
        manifest["shards"][0]["segments"][0] += 1
    path.write_text("nonsense" if change == "nonsense" else json.dumps(manifest))
    if change == "missing":
        path.unlink()
    with pytest.raises(DataError, match=r"manifest\.json"):
        ShardSet.open(written.uri)


WRITE_AGAIN = """
import sys
from sp500.storage import Folder

folder = Folder(sys.argv[1])
sys.stdin.readline()
for _ in range(100):
    folder.write("shard-00000.parquet", b"x" * 300_000)
"""


def test_two_writers_of_one_shard_and_its_reader_do_not_disturb_each_other(tmp_path):
    """As two jobs of the queue on the same data, or a lost Ray task and its retry."""
    command = [sys.executable, "-c", WRITE_AGAIN, str(tmp_path / "set")]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    path, sizes = tmp_path / "set" / "shard-00000.parquet", set[int]()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            sizes.add(len(path.read_bytes()))
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [("", 0)] * 2
    assert sizes == {300_000}
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_shards_take_a_twentieth_of_materialised_windows(written):
    assert written.bytes / (written.windows * 30 * 6 * 4) < 0.05


def test_set_on_another_filesystem_has_the_same_bytes(source, written, tmp_path):
    write(source, f"file://{tmp_path}/elsewhere")
    assert contents(tmp_path / "elsewhere") == contents(Path(written.uri))


@pytest.mark.parametrize("uri", ["gopher://bucket/set", "/proc/set"])
def test_place_that_cannot_be_written_is_named(source, uri):
    with pytest.raises(DataError, match=uri):
        write(source, uri)
