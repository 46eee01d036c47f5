"""Figures, tables and slides of a report as files that other programs read."""

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from test_first_screen import hand_made, rates
from test_page import Reader, trained

from sp500.report import page, pictures
from sp500.report.section import Runs
from sp500.report.tables import table


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records, results = hand_made(50.0, bought=False)
    folder = tmp_path_factory.mktemp("report")
    page.write_runs(Runs([*records, trained("one", 9)], {}, results, rates()), folder, slides=True)
    return folder


def test_every_figure_of_the_page_is_a_drawing_and_a_picture(out: Path) -> None:
    images = Reader((out / "index.html").read_text()).images
    drawings = sorted((out / "figures").glob("*.svg"))
    assert len(drawings) == len(images) > 5
    assert {ET.parse(path).getroot().tag for path in drawings} == {"{http://www.w3.org/2000/svg}svg"}
    assert all(path.with_suffix(".png").read_bytes().startswith(b"\x89PNG") for path in drawings)


def test_every_table_of_the_page_is_a_file_of_as_many_rows(out: Path) -> None:
    files = [list(csv.reader(path.open())) for path in (out / "tables").glob("*.csv")]
    tags = Reader((out / "index.html").read_text()).tags
    assert len(files) == tags.count("table")
    assert sum(map(len, files)) == tags.count("tr")


def test_file_of_a_table_has_plain_numbers_and_no_formula() -> None:
    shown = table("T", [{"Run": "=1+1", "Net": "\u22120.5", "Note": "\u2212x"}], text=("Run", "Note"))
    assert pictures.write_csv(shown) == "Run,Net,Note\n'=1+1,-0.5,\u2212x\n"


def test_slides_are_five_pages_that_load_nothing(out: Path) -> None:
    text = (out / "slides.html").read_text()
    found = Reader(text)
    assert found.tags.count("article") == 5
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert found.policies == Reader((out / "index.html").read_text()).policies
    assert found.addresses == [] or all(address.startswith("#") for address in found.addresses)
