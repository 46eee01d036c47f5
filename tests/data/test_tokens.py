"""Windows of tokens: what counts, what is masked, and that bytes add up, against the text itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sp500.config import RunConfig
from sp500.data.text import naive, tokens
from sp500.data.text.settings import TextConfig
from sp500.data.text.tokenizer import Bytes, Tokenizer, make, restore
from sp500.data.windows import MASKED, Windows
from sp500.errors import ConfigError, DataError
from sp500.tasks import catalog
from sp500.tasks.language import scores

WORDS = "häß 🙂 中文 the cat sat on the mat ".encode()


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return make(TextConfig(tokenizer="bpe", vocabulary=300), [WORDS * 20])


def instructions(folder: Path, count: int = 40, **first: str) -> Path:
    lines = [{"q": f"question {number}? ", "a": f"answer {number % 7}"} for number in range(count)]
    lines[0] |= first
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def settings(path: Path, **more: object) -> TextConfig:
    return TextConfig.model_validate(
        {"source": str(path), "prompt": "q", "answer": "a", "pack": "documents", "context": 48, **more}
    )


def targets_of(windows: Windows) -> list[bytes]:
    """The counted targets of each window, as text, with | for the end of a document."""
    return [bytes(b if b < 256 else ord("|") for b in line if b != MASKED) for line in windows.targets.tolist()]


@pytest.mark.parametrize("text", [WORDS, WORDS * 50, b"", b"  ends in spaces  ", "🙂🙂".encode()])
def test_tokens_stand_for_all_bytes_and_come_back_as_the_text(bpe, text):
    for tokenizer in (bpe, Bytes()):
        found = tokenizer.encode(text)
        assert int(found.sizes.sum()) == len(text)
        assert tokenizer.decode(found.ids.tolist()) == text


def test_tokenizer_comes_back_from_its_state_its_file_and_its_folder(bpe, tmp_path):
    bpe.save(tmp_path)
    for other in (
        restore(json.loads(json.dumps(bpe.state()))),
        make(TextConfig(tokenizer=str(tmp_path)), []),
        make(TextConfig(tokenizer=str(tmp_path / "tokenizer.json")), []),
        make(TextConfig(), [], str(tmp_path)),
    ):
        assert (other.size, other.end) == (bpe.size, bpe.end)
        assert other.encode(WORDS).ids.tolist() == bpe.encode(WORDS).ids.tolist()


def test_truncation_and_padding_of_a_tokenizer_file_are_off(bpe, tmp_path):
    bpe.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text())
    state["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    state["padding"] = {"strategy": {"Fixed": 500}, "direction": "Right", "pad_to_multiple_of": None}
    state["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|end|>"}
    path.write_text(json.dumps(state))
    for name in (tmp_path, path):
        found = make(TextConfig(tokenizer=str(name)), [])
        assert found.encode(WORDS).ids.tolist() == bpe.encode(WORDS).ids.tolist()


def test_tokenizer_that_loses_characters_or_has_no_end_is_noted(tmp_path):
    import tokenizers

    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).save(str(path))
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": "ab" * (50 + n) + "é" * (n == 9)}) + "\n" for n in range(10)))
    notes = tokens.dataset(TextConfig(source=str(source), tokenizer=str(path), context=8)).card["notes"]
    assert [note[:40] for note in notes[1:]] == [
        "the tokenizer loses characters of 1 of 1",
        "the tokenizer has no end token: where a ",
    ]


@pytest.mark.parametrize("name", ["none", "config.json"])
def test_tokenizer_that_is_not_there_is_named(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"text.tokenizer {tmp_path / name}: "):
        make(TextConfig(tokenizer=str(tmp_path / name)), [])


def test_stream_holds_the_documents_end_to_end_with_an_end_after_each(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.md").write_text(f"{number:02d} " * 40)
    text = TextConfig(source=str(tmp_path), context=16, tokenizer="bpe", vocabulary=300)
    found = tokens.dataset(text)
    tokenizer = restore(found.state)
    for part in (found.train, found.valid, found.test):
        assert part is not None
        rows = part.rows.reshape(-1, 16)
        assert np.array_equal(rows[:, 1:], part.targets[:, :-1])
        assert np.array_equal(rows[1:, 0], part.targets[:-1, -1])
    documents = b"".join(f"{number:02d} ".encode() * 40 for number in range(30))
    assert documents.startswith(tokenizer.decode(found.train.rows.tolist()))
    ends = np.flatnonzero(found.train.rows == tokenizer.end)
    assert tokenizer.decode(found.train.rows[ends[6] + 1 : ends[7]].tolist()) == b"07 " * 40
    assert found.card["bytes"]["test"] == len(tokenizer.decode(found.test.targets.flatten().tolist()))


def test_of_instructions_the_answers_and_their_ends_alone_count(tmp_path):
    found = tokens.dataset(settings(instructions(tmp_path)))
    assert found.valid is not None
    counts = {"train": 32, "valid": 4, "test": 4}
    answers = [f"answer {number % 7}|".encode() for number in range(40)]
    parts = {"train": found.train, "valid": found.valid, "test": found.test}
    for name, part in parts.items():
        first = {"train": 0, "valid": 32, "test": 36}[name]
        said = b"".join(sorted(b"".join(targets_of(part)).split(b"|")))
        assert said == b"".join(sorted(b"".join(answers[first : first + counts[name]]).split(b"|")))
        assert found.card["bytes"][name] == counts[name] * len("answer 0")
        assert len(part) < counts[name]  # several in a window
    rows = found.train.rows.reshape(-1, 49)
    inputs, targets = rows[:, :-1], rows[:, 1:]
    counted = found.train.targets != MASKED
    assert np.array_equal(targets[counted], found.train.targets[counted])
    assert inputs.max() <= 256


def test_instructions_in_two_parts_are_refused(tmp_path):
    path = instructions(tmp_path)
    with pytest.raises(DataError, match=r"36 documents of valid \(90%\) are also in a part before it"):
        tokens.dataset(settings(path, valid_source=str(path)))
    with pytest.raises(ConfigError, match=r"text\.field 'q' .* text\.prompt and text\.answer are read in its place"):
        tokens.dataset(settings(path, field="q"))


def test_instructions_are_whole_and_those_that_do_not_fit_are_named(tmp_path):
    path = instructions(tmp_path, q="long " * 20)
    with pytest.raises(DataError, match=r"train document 1 has 109 tokens, a window 49"):
        tokens.dataset(settings(path))
    path.write_text(path.read_text().replace('"a"', '"b"', 1))
    with pytest.raises(
        DataError, match=r"tasks\.jsonl, line 1: .*expected an object whose 'a' \(text\.answer\) is text"
    ):
        tokens.dataset(settings(path))


def test_long_documents_are_cut_into_pieces_and_short_ones_share_a_window(tmp_path):
    short = [{"text": f"y{number:09d}"} for number in range(12)] + [{"text": f"z{number:04d}"} for number in range(4)]
    lines = [{"text": "x" * 100}, *short]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = tokens.dataset(TextConfig(source=str(tmp_path / "a.jsonl"), pack="documents", context=31))
    rows = found.train.rows.reshape(-1, 32)
    assert [row.tobytes().count(b"x") for row in rows.astype(np.uint8)][:3] == [32, 32, 32]
    assert (found.train.targets[0] == ord("x")).all()
    assert len(rows) < 3 + 8


def test_validation_text_of_its_own_leaves_the_rest_for_training(tmp_path):
    path = instructions(tmp_path)
    (tmp_path / "other").mkdir()
    other = instructions(tmp_path / "other", count=5)
    other.write_text(other.read_text().replace("question", "problem "))
    found = tokens.dataset(settings(path, valid_source=str(other)))
    assert found.valid is not None
    assert found.card["bytes"] == {"train": 36 * 8, "valid": 5 * 8, "test": 4 * 8}
    text = {"max_bytes": 4_000, "valid_source": str(other), "field": "q"}
    config = RunConfig.model_validate({"task": "language", "text": text, "model": {"kind": "gpt"}})
    plain = catalog.task(config).prepare(config)
    assert plain.valid is not None
    assert plain.valid.rows.tobytes().startswith(b"problem  0? \n\nproblem  1? ")
    assert len(plain.train) == 3600 // 64


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": "q"}, "text.prompt is given without text.answer"),
        ({"prompt": "q", "answer": "a"}, "text.pack stream would cut instructions"),
        ({"prompt": "q", "answer": "a", "pack": "documents"}, "keys of a .jsonl file"),
        ({"vocabulary": 500}, "text.vocabulary is used only by text.tokenizer bpe"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(given, said):
    with pytest.raises(ValueError, match=said):
        TextConfig.model_validate(given)


def test_bits_per_byte_do_not_depend_on_the_tokenizer():
    windows = Windows(np.zeros(8, np.int32), np.array([0]), np.array([[1, 2, MASKED, 3]], np.int32), 4)
    found = scores(np.array([[6.0]]), windows, 12)
    assert found["bits_per_byte"] == pytest.approx(6.0 / math.log(2) / 12)
    assert found["loss"] == pytest.approx(2.0)
    assert found["perplexity"] == pytest.approx(math.exp(2.0))


def test_naive_methods_are_judged_on_the_answers_given_all_texts_before(tmp_path):
    found = tokens.dataset(settings(instructions(tmp_path)))
    before = b"\n\n".join(f"question {n}? answer {n % 7}".encode() for n in range(36))
    answers = b"\n\n".join(f"answer {n % 7}".encode() for n in range(36, 40))
    assert found.card["naive_bits"] == naive.bits_per_byte(before, answers)


def test_gpt_of_ours_learns_answers_and_its_loss_leaves_out_what_is_masked(tmp_path):
    config = RunConfig.model_validate(
        {
            "task": "language",
            "text": settings(instructions(tmp_path)).model_dump(),
            "model": {"kind": "gpt", "hidden": 16, "layers": 1, "heads": 2},
        }
    )
    task = catalog.task(config)
    dataset = task.prepare(config)
    output, target = torch.randn(len(dataset.test), 48, 257), torch.from_numpy(dataset.test.targets)
    counted = target != MASKED
    expected = F.cross_entropy(output[counted], target[counted].long(), reduction="sum")
    torch.testing.assert_close(task.loss(output, target), expected)
    torch.testing.assert_close(task.kept(output, target).sum(), expected)
    model = task.model(config, dataset)
    assert model(torch.from_numpy(dataset.test.rows[None, :48])).shape == (1, 48, 257)
