"""A part that is not installed names itself and the way to install it."""

import subprocess
import sys

import pytest

from sp500 import execution
from sp500.commands.experiments import train
from sp500.errors import ConfigError

CODE = """
import sys
sys.modules[{missing!r}] = None
from sp500.errors import ConfigError
try:
    {call}
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "extra", "call"),
    [
        ("kubernetes", "cluster", "from sp500.jobs.kuberay import api; api.KubeApi('a').client"),
        (
            "yfinance",
            "yahoo",
            "from sp500.config import DataConfig; from sp500.data import sources; "
            "sources.load(DataConfig(source='yfinance', tickers=('AAPL',), cache_dir='{folder}'))",
        ),
    ],
)
def test_missing_package_is_named_with_its_extra(tmp_path, missing, extra, call):
    code = CODE.format(missing=missing, call=call.format(folder=tmp_path))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"{missing} is not installed: pip install 'sp500[{extra}]'\n"


def test_missing_protocol_ends_the_server_with_the_way_out():
    code = "import sys; sys.modules['mcp'] = None; from sp500.commands.agent import mcp; sys.exit(mcp.main([]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "ConfigError: mcp is not installed: pip install 'sp500[agent]'\n")


@pytest.mark.parametrize(
    ("missing", "extra", "settings"),
    [
        ("transformers", "llm", {"task": "language", "model": {"kind": "hf", "path": "nowhere"}}),
        ("tokenizers", "llm", {"task": "language", "text": {"tokenizer": "bpe"}, "model": {"kind": "gpt"}}),
        ("timm", "vision", {"task": "images", "model": {"kind": "timm", "architecture": "resnet18"}}),
    ],
)
def test_missing_package_is_named_before_there_is_a_run(tmp_path, monkeypatch, missing, extra, settings):
    monkeypatch.setitem(sys.modules, missing, None)
    config = train.Train.model_validate({"io": {"save_dir": tmp_path / "runs"}, **settings})
    with pytest.raises(ConfigError, match=rf"{missing} is not installed: pip install 'sp500\[{extra}\]'"):
        execution.execute(config, train.act)
    assert not (tmp_path / "runs").exists()
