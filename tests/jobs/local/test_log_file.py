"""The last lines of a log, against those that Python splits off."""

import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_fakes import until

from sp500.jobs.local import log_file
from sp500.jobs.log_lines import LONGEST

MIB = 2**20


def told(path, tail):
    return list(log_file.lines(path, tail=tail, more=lambda: False))


@given(st.lists(st.text("ab\u00e9", max_size=5), max_size=12), st.booleans(), st.integers(0, 15) | st.none())
def test_last_lines_are_those_of_the_whole_text(words, ended, tail):
    text = "\n".join(words) + "\n" * ended
    expected = text.splitlines()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_file, "BLOCK", 3)
        path = Path(folder, "log")
        path.write_text(text)
        assert told(path, tail) == (expected if tail is None else expected[len(expected) - min(tail, len(expected)) :])


def test_tail_of_a_huge_log_reads_little_of_it(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(2**36)  # 64 GiB of zeros that lie on no disk
        file.seek(0, 2)
        file.write(b"\nlast but one\nlast\n")
    assert told(path, 2) == ["last but one", "last"]


def bytes_read():
    """Bytes that this process has read so far, of files and of pipes."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_tail_of_a_large_log_without_holes_reads_little_of_it(tmp_path):
    (tmp_path / "log").write_bytes(b"loss 0.5\n" * (3 * MIB))
    before = bytes_read()
    assert told(tmp_path / "log", 2) == ["loss 0.5"] * 2
    assert bytes_read() - before < 4 * MIB


def test_log_without_line_ends_is_read_to_its_end_in_little_memory(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * (24 * MIB))
    tracemalloc.start()
    size = sum(len(piece) for piece in log_file.lines(tmp_path / "log", tail=None, more=lambda: False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 24 * MIB
    assert peak < 2 * MIB


def test_bytes_that_are_no_text_are_replaced_and_carriage_returns_of_line_ends_dropped(tmp_path):
    (tmp_path / "log").write_bytes(b"a\xffb\r\n10 %\r20 %\n")
    assert told(tmp_path / "log", None) == ["a\ufffdb", "10 %", "20 %"]


def test_line_without_end_comes_in_pieces(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * (LONGEST + 1))
    assert [len(piece) for piece in told(tmp_path / "log", None)] == [LONGEST, 1]


@pytest.mark.parametrize("end", [b"\r", b"x", b"\n"])
def test_last_lines_of_a_large_log_take_little_memory_whatever_ends_its_lines(tmp_path, end):
    with (tmp_path / "log").open("wb") as file:
        for _ in range(24):
            file.write((b"loss" * 256 + end) * 1024)
    tracemalloc.start()
    found = told(tmp_path / "log", 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 5
    assert sum(map(len, found)) <= 5 * LONGEST
    assert peak < 12 * MIB


def test_log_over_its_limit_loses_its_oldest_lines_and_no_follower_sees_a_change(tmp_path):
    path, line = tmp_path / "log", b"%01023d\n"
    count = (log_file.LIMIT + MIB) // 1024
    path.write_bytes(b"".join(line % number for number in range(count)))
    log_file.trim(path)
    assert path.stat().st_blocks * 512 < log_file.LIMIT * 0.6
    assert path.stat().st_size == count * 1024
    found = told(path, None)
    assert "were removed" in found[0]
    assert [int(text) for text in found[1:]] == list(range(count - len(found) + 1, count))
    assert told(path, 2) == [f"{count - 2:01023d}", f"{count - 1:01023d}"]


def test_log_of_a_job_that_prints_without_end_stays_within_its_limit(here, ask, tmp_path):
    prints = f"for _ in range(150): print('x' * {MIB})\nprint('last', flush=True)\n"
    here.submit("a", ask(f"import os, time\n{prints}while not os.path.exists('go'): time.sleep(0.01)"))
    log = here._job("a").log
    until(lambda: log.stat().st_size >= 150 * MIB and log.stat().st_blocks * 512 <= log_file.LIMIT, 90)
    assert [one.text for one in here.logs("a", role=None, tail=1, follow=False)] == ["last"]
    (tmp_path / "go").touch()


def test_line_that_is_written_in_two_parts_comes_once(tmp_path):
    path = tmp_path / "log"
    parts = iter([b"be", b"gun\nend", b"ed"])

    def more():
        with path.open("ab") as file:
            part = next(parts, None)
            file.write(part or b"")
        return part is not None

    path.touch()
    assert list(log_file.lines(path, tail=None, more=more)) == ["begun", "ended"]


def test_missing_log_has_no_lines(tmp_path):
    assert told(tmp_path / "log", None) == []
