"""Text: each byte's target is the next one, parts do not overlap, and the naive figures are those of a known text."""

import bz2
import gzip
import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from sp500.data.text import corpus, dataset, naive
from sp500.data.text.settings import TextConfig
from sp500.errors import ConfigError, DataError


def test_target_of_each_byte_is_the_next(tmp_path):
    text = bytes(range(1, 256)) * 8
    (tmp_path / "a.txt").write_bytes(text)
    found = dataset.dataset(TextConfig(source=str(tmp_path / "a.txt"), context=16))
    for part in (found.train, found.valid, found.test):
        rows = part.rows.reshape(-1, 16)
        assert np.array_equal(rows[:, 1:], part.targets[:, :-1])
        assert np.array_equal(rows[:, -1].astype(int) % 255 + 1, part.targets[:, -1])
        assert part.targets.base is not None  # a view: targets take no memory
    assert found.train.rows[-1] < found.valid.rows[0] or len(found.train) > 1


def test_one_document_is_cut_with_a_context_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    parts, _ = dataset.split(TextConfig(source=str(tmp_path / "a.txt"), context=20))
    assert [len(part) for part in parts.values()] == [800, 80, 80]


def test_documents_are_on_one_side_each(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.md").write_text(f"{number:02d} " * 40)
    parts, _ = dataset.split(TextConfig(source=str(tmp_path), context=8))
    seen = [{int(word) for word in part.split()} for part in parts.values()]
    assert set.union(*seen) == set(range(30))
    assert sum(map(len, seen)) == 30
    assert max(seen[0]) < min(seen[1]) <= max(seen[1]) < min(seen[2])


def test_lines_of_jsonl_are_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"body": f"line {number} " * 9}) + "\n" for number in range(20)))
    assert corpus.read(TextConfig(source=str(path), field="body"))[3] == b"line 3 " * 9
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: .*expected an object whose 'text' \(text\.field\) is text"):
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
    """Last tenth of Python's topics given the rest: 3.34, 2.53, 1.92, 1.41 and 1.41 bits per byte."""
    text = corpus.BETWEEN.join(corpus.read(TextConfig(source="docs")))
    assert hashlib.sha256(text).hexdigest() == (  # in every version of Python
        "71f2ff5d99bdc1f9c48c5c2353ad138201c5ca1c377e0226857ef8fa89b8bcee"
    )
    cut = int(0.9 * len(text))
    found = naive.bits_per_byte(text[:cut], text[cut:])
    assert found["order-1"] == pytest.approx(3.34, rel=0.02)
    assert found["order-2"] == pytest.approx(2.53, rel=0.05)
    assert found["order-5"] == pytest.approx(1.92, rel=0.02)
    assert found["bz2"] == pytest.approx(
        8 * (len(bz2.compress(text)) - len(bz2.compress(text[:cut]))) / (len(text) - cut)
    )
    assert found["xz"] == pytest.approx(1.41, rel=0.01)


def test_counts_of_contexts_are_those_by_hand():
    # Of 6 bytes 3 are a. After b, which came once with a byte behind it, came a.
    alone = (3 + 1 / 256) / 7
    assert naive.contexts(b"abacab", b"a", 1) == pytest.approx(-np.log2((1 + alone) / 2))


@pytest.mark.parametrize(
    ("before", "text"), [(b"abracadabra", b"cadabra!"), (b"ab", b"abab"), (b"", b"ab"), (b"a" * 9, b"\0\xffa")]
)
def test_mixture_of_orders_is_witten_and_bells_formula_written_out(before, text):
    def probability(context, byte):
        shorter = probability(context[1:], byte) if context else 1 / 256
        at = [n for n in range(len(context), len(before)) if before[n - len(context) : n] == context]
        followers = [before[n] for n in at]
        kinds = len(set(followers))
        return (followers.count(byte) + kinds * shorter) / (len(at) + kinds) if at else shorter

    whole = before + text
    places = range(len(before), len(whole))
    bits = [-np.log2(probability(whole[max(n - 5, 0) : n], whole[n])) for n in places]
    assert naive.mixture(before, text, 5) == pytest.approx(np.mean(bits), rel=1e-12)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": 5}', "its 'text' is no text"),
        (b'{"body": "a"}', "is no object with that key"),
        (b"[1]", "is no object"),
        (b"{", "is not JSON"),
        (b'{"text": "\\ud83d"}', "has half of a surrogate pair"),
        ('{"text": "é"}'.encode("latin-1"), "is not UTF-8"),
        (b"[" * 100_000, "is nested too deep"),
    ],
)
def test_bad_line_of_jsonl_is_named_and_an_empty_one_is_none(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "first"}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=rf"a\.jsonl, line 3: {said}"):
        corpus.read(TextConfig(source=str(tmp_path / "a.jsonl")))


TEXT = "".join(f"line {number} of a text\n" for number in range(400))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("notes.txt.gz", gzip.compress(TEXT.encode(), mtime=0), r"compressed \(gzip\)"),
        ("notes.txt", bz2.compress(TEXT.encode()), r"compressed \(bzip2\)"),
        ("notes.txt.xz", lzma.compress(TEXT.encode()), r"compressed \(xz\)"),
        ("notes.docx", b"PK\x03\x04 and the rest", "a zip file"),
        ("report.pdf", b"%PDF-1.4\n" + TEXT.encode(), "a PDF"),
        ("notes.txt", TEXT.encode("utf-16"), "UTF-16"),
        ("notes.txt", TEXT.encode("utf-16-le"), "UTF-16 or no text"),
        ("lines.jsonl", json.dumps({"text": TEXT}).encode("utf-16"), "UTF-16"),
        ("lines.jsonl", gzip.compress(json.dumps({"text": TEXT}).encode(), mtime=0), r"compressed \(gzip\)"),
        ("array.json", json.dumps([{"text": TEXT}]).encode(), "JSON as a whole"),
    ],
)
def test_file_that_is_no_plain_text_is_refused_by_what_it_is(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=rf"{name}: is {said}.*expected"):
        corpus.read(TextConfig(source=str(tmp_path / name)))


@pytest.mark.parametrize("name", ["a.ndjson", "A.JSONL"])
def test_lines_are_parsed_under_every_usual_name(tmp_path, name):
    (tmp_path / name).write_text('{"body": "one"}\n{"body": "two"}\n')
    assert corpus.read(TextConfig(source=str(tmp_path / name), field="body")) == [b"one", b"two"]


@pytest.mark.parametrize("source", ["docs", "a.txt", "."])
def test_key_of_lines_is_refused_where_none_is_parsed(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(TEXT)
    with pytest.raises(ConfigError, match=r"text\.field 'body' .* leave it out"):
        dataset.dataset(TextConfig(source=source, field="body"))


# Folders: what tools leave in them, links, and documents that are there twice.


def notes(folder, count=12, first=0):
    """Documents that are all different."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        (folder / f"note{number:02d}.txt").write_text(f"note {number} " * 100)
    return folder


def read(folder):
    return corpus.read(TextConfig(source=str(folder)))


@pytest.mark.parametrize("hidden", [".ipynb_checkpoints/note00-checkpoint.txt", ".git/x.txt", ".note00.txt"])
def test_hidden_files_and_folders_are_left_out(tmp_path, hidden):
    expected = read(notes(tmp_path / "notes"))
    path = tmp_path / "notes" / hidden
    path.parent.mkdir(exist_ok=True)
    path.write_text("note 0 " * 100)
    assert read(tmp_path / "notes") == expected


def test_linked_folders_are_read_once_and_loops_end(tmp_path):
    folder, other = notes(tmp_path / "notes"), notes(tmp_path / "other", first=50)
    for name, target in {"a": other, "b": other, "loop": folder, "up": tmp_path}.items():
        (folder / name).symlink_to(target)
    (folder / "again.txt").symlink_to("note03.txt")
    assert sorted(read(folder)) == sorted(read(notes(tmp_path / "plain")) + read(other))


def test_link_to_a_file_that_is_gone_is_named(tmp_path):
    (notes(tmp_path / "notes") / "gone.txt").symlink_to("nowhere.txt")
    with pytest.raises(DataError, match=r"gone\.txt: cannot be read"):
        read(tmp_path / "notes")


def test_upper_case_suffix_is_read(tmp_path):
    (notes(tmp_path / "notes") / "BIG.TXT").write_text("big")
    assert b"big" in read(tmp_path / "notes")


def test_documents_in_two_parts_are_refused_and_a_few_are_noted(tmp_path):
    folder = notes(tmp_path / "notes", count=40)
    (folder / "zz.txt").write_text("note 0 ")
    (folder / "aa.txt").write_text("note 0 ")
    found = dataset.dataset(TextConfig(source=str(folder), context=8))
    assert found.card["notes"][1:] == ["1 document of test (0%) is also in a part before it"]
    (folder / "zz copy of note00.txt").write_text("note 0 " * 100)
    with pytest.raises(DataError, match=r"2 documents of test \(\d\d%\) are also in a part before it\. Remove one"):
        dataset.dataset(TextConfig(source=str(folder), context=8))


@pytest.mark.parametrize("copies", [1, 6])
def test_lines_that_come_again_are_refused(tmp_path, copies):
    lines = [json.dumps({"text": f"line {number} " * 9}) for number in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines * copies))
    text = TextConfig(source=str(tmp_path / "a.jsonl"), context=8)
    if copies == 1:
        assert len(dataset.dataset(text).card["notes"]) == 1
        return
    with pytest.raises(DataError, match=r"valid \(100%\) are also in a part before it"):
        dataset.dataset(text)


@pytest.mark.parametrize("valid_source", ["", "a.txt"])
def test_text_that_is_there_twice_is_refused_even_where_it_is_cut_by_position(tmp_path, valid_source):
    for name in ("a.txt", "b.txt")[: 1 if valid_source else 2]:
        (tmp_path / name).write_text(TEXT)
    valid = str(tmp_path / valid_source) if valid_source else ""
    with pytest.raises(DataError, match=r"1 document of (test|valid) \(100%\) is also"):
        dataset.dataset(TextConfig(source=str(tmp_path), valid_source=valid))


@pytest.mark.parametrize(
    "sizes", [(9500, 300, 300), (300, 300, 9500), (1000, 1000, 1000, 1000, 1000, 5000), (500, 500)]
)
def test_documents_of_any_sizes_are_split(tmp_path, sizes):
    (tmp_path / "test").mkdir()
    for number, size in enumerate(sizes):
        (tmp_path / "test" / f"{number}.txt").write_text(str(number) * size)
    parts, _ = dataset.split(TextConfig(source=str(tmp_path), context=8))
    assert all(len(part) > 8 for part in parts.values())
    if len(sizes) > 2:
        seen = [set(part.split()) for part in parts.values()]
        assert sum(map(len, seen)) == len(sizes)
