"""A part that is not installed names itself and the way to install it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

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
        ("kubernetes", "cluster", "from sp500.jobs.kuberay import client; client.client_of(None, None)"),
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


@pytest.mark.parametrize(
    ("task", "model", "module", "extra"),
    [
        ("images", ("timm", "--model.architecture", "resnet18"), "timm", "vision"),
        ("language", ("hf", "--model.path", "anywhere"), "transformers", "llm"),
    ],
)
def test_missing_library_of_a_model_is_named_before_torch_is_imported(tmp_path, task, model, module, extra):
    argv = ["train.py", "--task", task, "--runs-dir", str(tmp_path), "--model.kind", *model]
    code = (
        f"import sys, importlib.util, runpy; find = importlib.util.find_spec; sys.argv = {argv}\n"
        f"importlib.util.find_spec = lambda name, *more: None if name == {module!r} else find(name, *more)\n"
        "try:\n    runpy.run_path('experiments/train.py', run_name='__main__')\n"
        "finally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert done.stderr == f"ConfigError: {module} is not installed: pip install 'sp500[{extra}]'\n"
    assert list(tmp_path.iterdir()) == []


def test_missing_protocol_ends_the_server_with_the_way_out():
    code = "import sys; sys.modules['mcp'] = None; from sp500.commands.agent import mcp; sys.exit(mcp.main([]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "ConfigError: mcp is not installed: pip install 'sp500[agent]'\n")
