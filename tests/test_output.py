"""What reaches a terminal of a text that others wrote."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import requests

from sp500.console.output import _bypass_proxies, printable, run_command

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b]0;title\x07b", "a]0;titleb"),
        ("a\x1b[2Jb\x9b1A", "a[2Jb1A"),
        ("\x1b[1mbold\x1b[0m\tand\nmore", "\x1b[1mbold\x1b[0m\tand\nmore"),
        ("over\rwritten", "overwritten"),
    ],
)
def test_text_keeps_its_colors_and_commands_no_terminal(text, shown):
    assert printable(text) == shown


def test_result_and_message_of_a_script_are_printable():
    code = (
        "from sp500.console.output import run_command; from sp500.errors import DataError\n"
        "def fail(): raise DataError('ticker \\x1b]0;x')\n"
        "run_command(lambda: ('ticker \\x1b]0;x', 0), only_json=False); run_command(fail, only_json=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("ticker ]0;x\n", "DataError: ticker ]0;x\n")


def test_folder_that_was_deleted_is_the_error_of_whatever_needs_it_alone(tmp_path, monkeypatch, capsys):
    with pytest.raises(FileNotFoundError):  # of a file that is missing elsewhere
        run_command(lambda: ((tmp_path / "x").read_text(), 0), only_json=False)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run_command(lambda: (str(Path("x").absolute()), 0), only_json=False) == 2
    assert "folder was deleted" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), BlockingIOError(11, "Resource unavailable")])
def test_limit_of_processes_is_one_message(error, capsys):
    def act():
        raise error

    assert run_command(act, only_json=False) == 1
    assert "no further process" in capsys.readouterr().err


RESULT = (
    "from sp500.console.output import run_command; raise SystemExit(run_command(lambda: ('x', 0), only_json=False))"
)
CLI = ("-m", "sp500.cli")


@pytest.mark.parametrize(
    "words", [(*CLI, "--version"), CLI, (*CLI, "jobs"), (*CLI, "jobs", "list", "--help"), ("-c", RESULT)]
)
def test_full_disk_under_stdout_is_one_message(words):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (1, "stdout cannot be written: No space left on device\n")


LIBRARY = """
import os, sys
from sp500.console.output import run_command

def act():
    with open("rows", "w") as file:
        print("progress", file=sys.stderr)
        os.write(2, b"of a library")
        file.write("one")
    return "result", 0

sys.exit(run_command(act, only_json="--json" in sys.argv))
"""


@pytest.mark.parametrize("flag", ["", "--json"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lose_what_goes_there_and_nothing_else(tmp_path, closed, flag):
    command = f'"{sys.executable}" -c "$0" {flag} {closed}'
    place = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT)}}
    done = subprocess.run(["/bin/sh", "-c", command, LIBRARY], capture_output=True, text=True, check=True, **place)
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "result\n")
    assert (tmp_path / "rows").read_text() == "one"


@pytest.mark.parametrize("proxy", ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    ("given", "others"),
    [
        ({}, []),
        ({"no_proxy": "corp"}, ["corp"]),
        ({"NO_PROXY": "corp,127.0.0.1"}, ["corp"]),
        ({"no_proxy": "*"}, ["x"]),
    ],
)
def test_this_machine_is_asked_past_any_proxy(monkeypatch, proxy, given, others):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    environment = {proxy: "http://127.0.0.1:9", **given}
    _bypass_proxies(environment)
    once = dict(environment)
    _bypass_proxies(environment)
    assert environment == once
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for host in ("127.0.0.1", "localhost", *others):
        assert urllib.request.proxy_bypass(host)
        assert requests.utils.should_bypass_proxies(f"http://{host}:8265", no_proxy=None)
    assert others == ["x"] or not urllib.request.proxy_bypass("example.org")


def test_environment_without_a_proxy_stays_as_it_is():
    environment = {"PATH": "/bin"}
    _bypass_proxies(environment)
    assert environment == {"PATH": "/bin"}
