"""Text: each byte's target is the next one, parts do not overlap, and the naive figures are those of a known text."""

import bz2
import json

import numpy as np
import pytest

from sp500.config import TextConfig
from sp500.data.text import corpus, dataset, naive
from sp500.errors import DataError


def test_target_of_each_byte_is_the_next(tmp_path):
    text = bytes(range(256)) * 8
    (tmp_path / "a.txt").write_bytes(text)
    found = dataset.dataset(TextConfig(source=str(tmp_path / "a.txt"), context=16))
    for part in (found.train, found.valid, found.test):
        rows = part.rows.reshape(-1, 16)
        assert np.array_equal(rows[:, 1:], part.targets[:, :-1])
        assert np.array_equal((rows[:, -1].astype(int) + 1) % 256, part.targets[:, -1])
        assert part.targets.base is not None  # a view: targets take no memory
    assert found.train.rows[-1] < found.valid.rows[0] or len(found.train) > 1


def test_one_document_is_cut_with_a_context_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    parts = dataset.split(TextConfig(source=str(tmp_path / "a.txt"), context=20))
    assert [len(part) for part in parts.values()] == [800, 80, 80]


def test_documents_are_on_one_side_each(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.md").write_text(f"{number:02d} " * 40)
    parts = dataset.split(TextConfig(source=str(tmp_path), context=8))
    seen = [{int(word) for word in part.split()} for part in parts.values()]
    assert set.union(*seen) == set(range(30))
    assert sum(map(len, seen)) == 30
    assert max(seen[0]) < min(seen[1]) <= max(seen[1]) < min(seen[2])


def test_lines_of_jsonl_are_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"body": f"line {number} " * 9}) + "\n" for number in range(20)))
    assert corpus.read(TextConfig(source=str(path), field="body"))[3] == b"line 3 " * 9
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: expected an object whose 'text' \(text\.field\) is text"):
        corpus.read(TextConfig(source=str(path)))


def test_bytes_may_be_limited():
    documents = corpus.read(TextConfig(source="docs", max_bytes=5000))
    assert [len(document) for document in documents] == [5000]


@pytest.mark.parametrize(("name", "text"), [("none.txt", None), ("empty.txt", ""), ("short.txt", "a" * 50)])
def test_text_that_is_missing_or_too_short_is_named(tmp_path, name, text):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=rf"text\.source .*{name}"):
        dataset.dataset(TextConfig(source=str(tmp_path / name)))


def test_naive_figures_of_pythons_documentation():
    """Last tenth of Python's topics given the rest: 3.34, 2.53, 1.41 and 1.41 bits per byte."""
    text = corpus.BETWEEN.join(corpus.read(TextConfig(source="docs")))
    cut = int(0.9 * len(text))
    found = naive.bits_per_byte(text[:cut], text[cut:])
    assert found["order-1"] == pytest.approx(3.34, rel=0.02)
    assert found["order-2"] == pytest.approx(2.53, rel=0.05)
    assert found["bz2"] == pytest.approx(
        8 * (len(bz2.compress(text)) - len(bz2.compress(text[:cut]))) / (len(text) - cut)
    )
    assert found["xz"] == pytest.approx(1.41, rel=0.01)


def test_counts_of_contexts_are_those_by_hand():
    # Of 6 bytes 3 are a. After b, which came once with a byte behind it, came a.
    alone = (3 + 1 / 256) / 7
    assert naive.contexts(b"abacab", b"a", 1) == pytest.approx(-np.log2((1 + alone) / 2))


@pytest.mark.parametrize("line", ['{"text": 5}', '{"text": "\\ud800"}', "[1]", "{"])
def test_bad_line_of_jsonl_is_named_and_an_empty_one_is_none(tmp_path, line):
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n\n' + line + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl, line 3"):
        corpus.read(TextConfig(source=str(tmp_path / "a.jsonl")))


@pytest.mark.parametrize(
    "sizes", [(9500, 300, 300), (300, 300, 9500), (1000, 1000, 1000, 1000, 1000, 5000), (500, 500)]
)
def test_documents_of_any_sizes_are_split(tmp_path, sizes):
    (tmp_path / "test").mkdir()
    for number, size in enumerate(sizes):
        (tmp_path / "test" / f"{number}.txt").write_text(str(number) * size)
    parts = dataset.split(TextConfig(source=str(tmp_path), context=8))
    assert all(len(part) > 8 for part in parts.values())
    if len(sizes) > 2:
        seen = [set(part.split()) for part in parts.values()]
        assert sum(map(len, seen)) == len(sizes)
