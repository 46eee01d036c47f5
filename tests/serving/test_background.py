"""`sp500.serve`: answers from a thread, until it is stopped."""

import threading
from pathlib import Path

import pytest
import requests

import sp500
from sp500.errors import ConfigError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("background")
    sp500.train(name="linear", model="linear", epochs=1, tickers=("KO",), start="2019-01-01", runs_dir=folder)
    return folder


def test_run_answers_beside_this_thread_until_it_is_stopped(runs):
    threads = threading.active_count()
    with sp500.serve("linear", runs_dir=runs) as first, sp500.serve("linear", runs_dir=runs) as second:
        assert first.url != second.url
        assert requests.get(f"{first.url}/v1/models", timeout=30).status_code == 200
        assert repr(second).startswith(f"{second.url} answers with ")
    with pytest.raises(requests.ConnectionError):
        requests.get(first.url, timeout=30)
    assert threading.active_count() == threads
    with pytest.raises(ConfigError, match="nothing"):
        sp500.serve("nothing", runs_dir=runs)
