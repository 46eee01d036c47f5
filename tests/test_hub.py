"""Models of the hub that cannot be had: one line each, from a server that answers as the hub does."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

import forks
import pytest

from sp500 import hub
from sp500.data.text import tokenizer
from sp500.data.text.settings import TextConfig
from sp500.errors import ConfigError

ROOT = Path(__file__).parents[1]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
}
TRAIN = ("experiments/train.py", "--task", "language", "--model.kind", "hf")
ANSWERS = {
    "unknown": (404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "private": (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."}),
    "gated": (401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted."}),
    "unlicensed": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "You are not in the authorized list."}),
    "forbidden": (403, {"X-Error-Message": "no right"}),
    "broken": (500, {}),
    "crowded": (429, {"Retry-After": "120"}),
}


SHA, ETAG = "a" * 40, "b" * 40
STAGES = ("info", "revision", "tree", "head", "file")
"""Questions about a model in their order. Of an owner no-STAGE's that one gets no answer, or half a file."""


class Hub(BaseHTTPRequestHandler):
    """What huggingface.co answers to a request for a model whose owner is the answer's name."""

    tokens: ClassVar[list[str | None]] = []
    asked: ClassVar[list[tuple[str, str]]] = []
    closing: ClassVar[Event] = Event()

    def do_GET(self) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        self.asked.append((self.command, self.path))
        owner = self.path.removeprefix("/api/models").split("/")[1]
        code, headers = ANSWERS.get(owner, (200, {}))
        body = self.body() if code == 200 else json.dumps({"error": headers.get("X-Error-Message", "")}).encode()
        silent = owner == f"no-{self.stage()}"
        if silent and owner != "no-file":
            self.closing.wait()
            return
        first, size = int((self.headers.get("Range") or "bytes=0-")[6:-1]), len(body)
        body = body[first:]
        self.send_response(206 if first else code)
        common = {"Content-Length": str(len(body)), "ETag": f'"{ETAG}"', "X-Repo-Commit": SHA}
        for name, value in {**headers, **common}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            cut = silent or (owner == "cut" and self.stage() == "file" and not first)
            self.wfile.write(body[: size // 2] if cut else body)
        if silent:
            self.closing.wait()

    do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    def stage(self) -> str:
        if "/resolve/" in self.path:
            return "head" if self.command == "HEAD" else "file"
        return next((name for name in ("revision", "tree") if f"/{name}/" in self.path), "info")

    def body(self) -> bytes:
        config = json.dumps(CONFIG).encode()
        if self.stage() == "tree":
            return json.dumps([{"type": "file", "path": "config.json", "size": len(config), "oid": ETAG}]).encode()
        return config if "/resolve/" in self.path else json.dumps({"id": "o/tiny", "sha": SHA}).encode()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    Hub.closing.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Hub.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def library(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library in this process, which reads the environment once."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # another test may have imported the library
    Hub.asked.clear()


def fetched(name: str, endpoint: str, home: Path, **environment: str) -> tuple[int, str]:
    """Exit code and message of a training with this model."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    done = forks.run(
        [*TRAIN, "--model.path", name, "--runs-dir", str(home / "runs" / name)],
        cwd=ROOT,
        env={**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **environment},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("owner", "token", "said"),
    [
        ("unknown", "t", "has no model of that name"),
        ("private", "", "or it is private: set HF_TOKEN"),
        ("gated", "", "is gated: accept its licence at"),
        ("unlicensed", "t", "the owner of the token has not accepted its licence"),
        ("forbidden", "t", "answers 403: HF_TOKEN is not valid, or has no right to it"),
        ("broken", "", "answers 500: try again later"),
        ("crowded", "", "answers 429: try again later"),
    ],
)
def test_model_that_the_hub_does_not_give_is_refused_with_the_way_out(owner, token, said, endpoint, tmp_path):
    code, message = fetched(f"{owner}/tiny", endpoint, tmp_path, HF_TOKEN=token)
    assert code == 2
    (line,) = message.splitlines()
    assert line.startswith(f"ConfigError: model.path {owner}/tiny: ")
    assert said in line


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("stage", STAGES)
def test_hub_that_falls_silent_is_asked_once_and_not_waited_for(stage, monkeypatch):
    monkeypatch.setattr(hub, "SECONDS", 2.0)
    with pytest.raises(ConfigError, match="cannot be reached"):
        hub.fetch(f"no-{stage}/tiny", "model.path")
    assert len(Hub.asked) == STAGES.index(stage) + 1
    assert len(set(Hub.asked)) == len(Hub.asked)


@pytest.mark.usefixtures("library")
def test_model_is_fetched_once_and_found_again_without_the_hub(monkeypatch):
    folder = hub.fetch("owner/tiny", "model.path")
    assert json.loads((folder / "config.json").read_text()) == CONFIG
    monkeypatch.setenv("HF_ENDPOINT", _closed())
    assert hub.fetch("owner/tiny", "model.path") == folder


@pytest.mark.usefixtures("library")
def test_download_that_was_cut_off_goes_on_where_it_was(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 16)
    folder = hub.fetch("cut/tiny", "model.path")
    assert json.loads((folder / "config.json").read_text()) == CONFIG
    assert Hub.asked[-1] == Hub.asked[-2] == ("GET", f"/cut/tiny/resolve/{SHA}/config.json")


@pytest.mark.usefixtures("library")
def test_proxy_that_lets_nobody_through_is_a_hub_that_cannot_be_reached(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("HTTPS_PROXY", endpoint)
    with pytest.raises(ConfigError, match=r"https://hub.invalid cannot be reached"):
        hub.fetch("owner/tiny", "model.path")


@pytest.mark.usefixtures("library")
def test_tokenizer_is_not_looked_up_on_the_hub():
    with pytest.raises(ConfigError, match=r"text.tokenizer owner/tiny: has no tokenizer that can be used"):
        tokenizer.make(TextConfig(tokenizer="owner/tiny"), [])
    assert Hub.asked == []


def _closed() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_hub_that_is_not_there_and_one_that_is_switched_off_name_the_folder_to_mount(tmp_path):
    closed = _closed()
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        code, message = fetched("owner/tiny", closed, tmp_path, **environment)
        assert code == 2
        assert "mount FOLDER and set it as model.path" in message
        assert len(message.splitlines()) == 1


def test_token_of_older_guides_is_sent_with_a_notice(endpoint, tmp_path):
    Hub.tokens.clear()
    _, message = fetched("unknown/tiny", endpoint, tmp_path, HUGGINGFACE_HUB_TOKEN="old-secret")
    assert "Bearer old-secret" in Hub.tokens
    assert "HUGGINGFACE_HUB_TOKEN is set, which the hub's library does not read" in message
    assert "old-secret" not in message


FOLDERS: dict[str, tuple[dict[str, str] | None, list[str], str]] = {
    "nothing": (None, [], "no such folder; expected one with a config.json, or OWNER/NAME on the hub"),
    "empty": ({}, [], "has no usable config.json"),
    "tokenizer": (
        {"config.json": json.dumps(CONFIG)},
        ["--text.tokenizer", "model"],
        "has no tokenizer that can be used",
    ),
    "context": (
        {"config.json": json.dumps(CONFIG)},
        ["--text.context", "65"],
        "text.context 65 is above the 64 positions",
    ),
    "pickle": ({"config.json": json.dumps(CONFIG), "pytorch_model.bin": ""}, [], "as a pickle (pytorch_model.bin)"),
    "adapter": (
        {"config.json": json.dumps(CONFIG)},
        ["--model.adapter-rank", "2"],
        "has no weights that an adapter could change",
    ),
}
"""Files of a folder, more flags, and what is said of it."""
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, runpy, sys

answers = {}
for name, argv in json.loads(sys.argv[1]).items():
    sys.argv, message = argv, io.StringIO()
    with contextlib.redirect_stderr(message):
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as end:
            answers[name] = end.code, message.getvalue()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and message of a training of each folder, in one process: the library takes a second to import."""
    home = tmp_path_factory.mktemp("folders")
    commands = {}
    for name, (files, flags, _) in FOLDERS.items():
        if files is not None:
            (home / name).mkdir()
        for file, text in (files or {}).items():
            (home / name / file).write_text(text)
        paths = ["--model.path", str(home / name), "--runs-dir", str(home / "runs" / name)]
        commands[name] = [str(ROOT / TRAIN[0]), *TRAIN[1:], *paths, "--text.max-bytes", "20000", *flags]
    script = home / "script.py"
    script.write_text(ONE_AFTER_THE_OTHER)
    done = forks.run([str(script), json.dumps(commands)], cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    answers: dict[str, tuple[int, str]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("name", list(FOLDERS))
def test_folder_that_cannot_be_used_is_refused_in_one_line(name, trained):
    code, message = trained[name]
    assert code == 2, message
    assert FOLDERS[name][2] in " ".join(message.replace("\u2502", "").split())
    assert "Traceback" not in message
