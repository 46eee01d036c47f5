"""`sp500 mlflow sync`: what it refuses before it does anything."""

import subprocess
import sys

import pytest

from sp500.cli import main

WORDS = ["mlflow", "sync"]


@pytest.mark.parametrize(
    ("words", "said"), [(["--follow", "--json"], "use one of them"), (["--experiment", ""], "experiment")]
)
def test_wrong_flag_is_refused(words, said, capsys):
    assert main([*WORDS, *words]) == 2
    assert said in capsys.readouterr().err


def test_password_in_a_flag_is_refused_and_not_repeated(capsys):
    assert main([*WORDS, "--uri", "http://me:secret@example.com"]) == 2
    said = capsys.readouterr().err
    assert "MLFLOW_TRACKING_PASSWORD" in said
    assert "secret" not in said


def test_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert main([*WORDS, "--runs-dir", str(tmp_path / "none"), "--uri", str(tmp_path)]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_missing_package_ends_with_the_way_to_install_it(tmp_path):
    code = "import sys; sys.modules['mlflow'] = None; from sp500.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, *WORDS, "--runs-dir", str(tmp_path), "--uri", str(tmp_path / "store")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "ConfigError: mlflow is not installed: pip install 'sp500[mlflow]'\n")
    assert not (tmp_path / "store").exists()
