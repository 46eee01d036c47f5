"""The page at /, as a browser shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from http_server import serving
from PIL import Image

from sp500.cli import main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=60000"]


def browser(tmp_path: Path, *flags: str) -> str:
    if BROWSER is None:
        pytest.skip("no chromium is installed")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    argv = [BROWSER, *QUIET, profile, "--window-size=900,900", *flags]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_page_shows_prices_forecast_rivals_and_record(served_runs, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(served_runs, tmp_path / "runs")
    assert main(["models", "promote", "returns"]) == 0
    with serving(tmp_path / "runs", "main") as (client, *_):
        for number in (-30, -1):  # one answer whose next price is known
            request = client.get("/v1/prices/KO").json()
            part = {name: request[name][: len(request["dates"]) + number + 1] for name in ("dates", "close")}
            assert client.post("/v1/forecast", {"ticker": "KO", **part}).status_code == 200
        page = browser(tmp_path, "--dump-dom", f"{client.url}/#KO")
        shown = words(page)
        assert 'role="alert"></p>' in page, shown
        assert "run returns, version 1, task returns" in shown
        assert "KO at the close of 2022-12-29" in shown
        for name in ("run returns", "naive: no change", "naive: mean of the training", "naive: as before"):
            assert re.search(rf"{name}\s+[+\u2212]?\d\.\d{{3}} %", shown), shown
        assert re.search(r"returns \(champion\)\s+2\s+1\s", shown), shown
        assert len(re.search(r'<polyline points="([^"]*)"', page)[1].split()) == 250
        brightness = []
        for flags in ([], ["--blink-settings=preferredColorScheme=0"]):
            browser(tmp_path, *flags, f"--screenshot={tmp_path / 'page.png'}", f"{client.url}/#KO")
            brightness.append(Image.open(tmp_path / "page.png").convert("L").getpixel((450, 5)))
        assert brightness[0] > 240
        assert brightness[1] < 40


def test_page_asks_for_the_key_and_tells_what_is_wrong(served_runs, tmp_path):
    with serving(served_runs, "returns", key="secret") as (client, *_):
        page = browser(tmp_path, "--dump-dom", client.url)
        assert "Authorization: Bearer KEY is missing or wrong" in words(page)
        assert 'id="keyed"' in page
        assert 'hidden="" id="keyed"' not in page
        assert 'id="answer" hidden=""' in page


def test_page_of_a_model_without_prices_says_what_it_is(served_runs, tmp_path):
    with serving(served_runs, "synthetic") as (client, *_):
        shown = words(browser(tmp_path, "--dump-dom", client.url))
        assert "task synthetic" in shown
        assert client.get("/v1/prices").json() == {"tickers": []}
        assert client.get("/v1/prices/KO").status_code == 404
