"""The files that a report writes: complete, self-contained, safe against what a run's reason says."""

import json
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from result_rows import NOW, chosen, run_record, search_summary
from scale_rows import one

from sp500.report import page, tables
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.trials import TrialResult

EVIL = "loss is <script>alert(1)</script> & not finite"


def record(name: str, minute: int, **changes: Any) -> RunRecord:
    ended = NOW + timedelta(minutes=minute)
    return run_record(name, **({"started": ended, "finished": ended} | changes))


def trained(name: str, minute: int, **changes: Any) -> RunRecord:
    gain = {"over": "mean", "metric": "mse", "value": 0.01, "low": -0.01, "high": 0.03}
    test = {"mse": 1.98e-4, "information_coefficient": None, "samples": 100, "improvement": gain}
    naive = {"mean": {"mse": 2e-4, "information_coefficient": 0.1, "samples": 100}}
    data = {
        "source": "bundled",
        "sha256": "ab",
        "tickers": ["^GSPC"],
        "splits": {"test": ["a", "b"]},
        "notes": ["BIASED"],
    }
    return record(name, minute, best_epoch=2, data=data, metrics={"test": test, "naive": naive}, **changes)


def trials(seconds: float) -> list[TrialResult]:
    ok = {"status": "ok", "reason": "", "best_epoch": 1, "epochs": 3, "seconds": seconds}
    good = [{"id": f"c{n}", "overrides": {"model.hidden": 32 * n}, "valid_loss": 0.4 + n / 100} | ok for n in (1, 2, 3)]
    bad = {"id": "c4", "overrides": {}, "valid_loss": None} | ok | {"status": "failed", "reason": EVIL}
    return [TrialResult.model_validate(one) for one in (*good, bad)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[page.Report, Path]:
    best = chosen(id="c1", overrides={"model.hidden": 32}, valid_loss=0.41)
    search = search_summary(configs=4, failed=1, best=best)
    rows = [one(1, "in_memory", 10.0, run="scale"), one(1, "ray", None, 2, status="failed", reason=EVIL, run="scale")]
    records = [
        trained("one", 0),
        record("bad", 1, status="failed", reason=EVIL),
        trained("s", 2, experiment="tune", arm="sequential", search=search),
        trained("p", 3, experiment="tune", arm="ray", search=search),
        record("scale", 4, experiment="scale", arm="all", scale=rows),
    ]
    epochs = [EpochMetrics(epoch=n, train_loss=1 / n, valid_loss=1.0, samples=10, seconds=1.0) for n in (1, 2, 3)]
    out = tmp_path_factory.mktemp("runs") / "report"
    return page.write(records, {"one": epochs}, {"s": trials(1.0), "p": trials(2.0)}, out), out


class Reader(HTMLParser):
    """Tags, addresses, and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.headers: list[dict[str, str | None]] = []
        self.policies: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.addresses += [found[key] or "" for key in ("src", "href", "xlink:href") if key in found]
        self.images += [found] if tag == "svg" else []
        self.headers += [found] if tag == "th" else []
        self.policies += [found["content"] or ""] if found.get("http-equiv") == "Content-Security-Policy" else []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_report_json_holds_its_parts_and_nothing_else(written: tuple[page.Report, Path]) -> None:
    report, out = written
    numbers = json.loads((out / "report.json").read_text())
    scaled = {"scale", "break_even", "strong_scaling", "weak_scaling"}
    assert set(numbers) == scaled | {"answers", "search", "folds", "models", "costs", "forecast"}
    assert numbers == report.numbers
    assert numbers["search"]["configs"] == 4
    assert [row["arm"] for row in numbers["scale"]] == ["in_memory", "ray"]
    assert [(row["kind"], row["run"]) for row in numbers["models"]][-2:] == [("naive", None), ("model", "bad")]


def test_page_loads_nothing_from_anywhere(written: tuple[page.Report, Path]) -> None:
    text = written[0].path.read_text()
    found = Reader(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert all(address.startswith("#") for address in found.addresses)
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text


def test_page_forbids_the_browser_to_run_or_load_anything(written: tuple[page.Report, Path]) -> None:
    text = written[0].path.read_text()
    [policy] = Reader(text).policies
    sources = {name: rest for name, *rest in (part.split() for part in policy.split(";"))}
    assert sources == {"default-src": ["'none'"], "img-src": ["data:"], "style-src": ["'unsafe-inline'"]}
    before = text[: text.index("Content-Security-Policy")]
    assert {"html", "head", "meta"} >= set(Reader(before).tags)


def test_reason_of_a_run_stays_text(written: tuple[page.Report, Path]) -> None:
    report, out = written
    found = Reader(report.path.read_text())
    assert "script" not in found.tags
    assert sum(EVIL in text for text in found.texts) >= 3
    assert "<script>" not in (out / "report.md").read_text()


def test_files_hold_no_command_of_a_terminal(tmp_path: Path) -> None:
    evil = trained("m\x1b[2J\x07", 1)
    evil.data["tickers"] = ["A\x1b]0;x\x07", "\x9b1A\x7f"]
    failed = record("b", 2, status="failed", reason="\x1b[2Jnot\x9b1A finite")
    page.write([evil, failed], {}, {}, tmp_path)
    texts = [(tmp_path / name).read_text() for name in ("index.html", "report.md", "report.json")]
    assert [sign for text in texts for sign in text if not sign.isprintable() and sign not in "\n\t"] == []
    assert all("2J" in text for text in texts[:2])


def test_figures_and_tables_can_be_read_without_eyes(written: tuple[page.Report, Path]) -> None:
    found = Reader(written[0].path.read_text())
    assert len(found.images) == 10
    assert all(image["role"] == "img" and image["aria-label"] for image in found.images)
    assert all(header.get("scope") in ("row", "col") for header in found.headers)


def test_page_and_markdown_hold_every_verdict(written: tuple[page.Report, Path]) -> None:
    report, out = written
    said = [sentence for sentences in report.verdicts.values() for sentence in sentences]
    assert any("0 of 2 models better than the best naive forecast (training mean)" in sentence for sentence in said)
    texts, markdown = Reader(report.path.read_text()).texts, (out / "report.md").read_text()
    for sentence in said:
        assert sentence in texts
        assert tables.escape(sentence) in markdown
    summary = page.summary(report)
    assert all(text in summary for text in (report.screen.headline, *(item.caption for item in report.screen.answers)))
    assert str(report.path) in summary


def test_metric_that_is_none_reads_as_a_dash(written: tuple[page.Report, Path]) -> None:
    line = next(line for line in (written[1] / "report.md").read_text().splitlines() if line.startswith("| mlp 64x2 "))
    assert " | - | " in line
    assert "None" not in written[0].path.read_text()


def test_failed_runs_notes_and_statuses_are_told(written: tuple[page.Report, Path]) -> None:
    texts = " ".join(Reader(written[0].path.read_text()).texts)
    assert "1 run ended without test metrics: 1 failed (bad). The table under Runs has the reasons." in texts
    assert "BIASED" in texts
    assert "Best of 4 configs tried, 1 of which failed: hidden 32" in texts


def test_long_reason_is_cut_in_the_tables_and_whole_in_the_numbers(tmp_path: Path) -> None:
    long = f"data.source /{'far/' * 60}prices.csv: no such file"
    runs = [record(name, minute, status=status, reason=long) for minute, (name, status) in enumerate(
        [("one", "failed"), ("two", "stopped"), ("three", "failed")])]  # fmt: skip
    report = page.write(runs, {}, {}, tmp_path)
    assert [row["reason"] for row in report.numbers["models"]] == [long] * 3
    for text in (report.path.read_text(), (tmp_path / "report.md").read_text()):
        assert "3 runs ended without test metrics: 2 failed (three, one) and 1 stopped (two)." in text
        assert long not in text
        assert f"failed: {long[: tables.REASON - 1]}\u2026" in text
        assert "is cut; record.json in the run" in text


def test_no_runs_at_all_gives_a_page_of_commands(tmp_path: Path) -> None:
    report = page.write([], {}, {}, tmp_path / "report")
    numbers = json.loads((tmp_path / "report" / "report.json").read_text())
    assert numbers.pop("answers")["answers"] == []
    assert numbers == {
        "search": dict.fromkeys(report.numbers["search"]),
        **{name: [] for name in ("folds", "scale", "break_even", "strong_scaling", "weak_scaling", "models")},
        "costs": {"currency": None, "rates_of": None, "runs": {}},
        "forecast": {},
    }
    for text in (report.path.read_text(), (tmp_path / "report" / "report.md").read_text(), page.summary(report)):
        for verb in ("train", "tune --mode", "scale --multipliers"):
            assert f"sp500 {verb}" in text


def test_same_runs_make_the_same_bytes(tmp_path: Path) -> None:
    epochs = [EpochMetrics(epoch=n, train_loss=1 / n, valid_loss=None, samples=10, seconds=1.0) for n in (1, 2)]
    pages = [page.write([trained("one", 0)], {"one": epochs}, {}, tmp_path / name).path for name in ("a", "b")]
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize(("source", "flag"), [("bundled", ""), ("my prices.csv", " --data.source 'my prices.csv'")])
def test_command_that_fills_an_empty_section_takes_the_prices_of_the_newest_run(source, flag, tmp_path):
    run = trained(
        "one", 0, config={"task": "returns", "model": {"kind": "mlp"}, "train": {}, "data": {"source": source}}
    )
    report = page.write([run], {}, {}, tmp_path)
    command = f"sp500 walk-forward{flag}"
    assert page.summary(report).count(f"Does it hold year after year? Not run yet: {command}\n") == 1
    assert f"`{command}`\n" in (tmp_path / "report.md").read_text()
