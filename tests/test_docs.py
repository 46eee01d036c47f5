"""The documentation: its commands are run, parsed, or name files that are there; its links lead somewhere.

Run in a temporary folder: `sp500 doctor`, `jobs list`, `jobs render`, `jobs forecast`, and `compare.py`. Run with
--dry-run: `sp500 jobs submit`, `prepare.py`, `train.py` and `tune.py`. Only parsed, by the model of their flags: all
other verbs and experiments (their dry runs read prices), scripts/ that call a verb, and benchmarks/. Of all other
programs the files that they name must exist. What follows a lone -- is checked as a command of its own.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pkgutil
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest
import tyro
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from sp500 import cli
from sp500.config import RunConfig
from sp500.runs.record import make_record
from sp500.runs.store import RunStore

ROOT = Path(__file__).parent.parent
LOG = ROOT / "docs" / "LOG.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*ROOT.glob("docs/*.md")} - {LOG})]
GUIDE = ROOT / "cluster" / "README.md"
EXPERIMENTS = sorted(path.stem for path in ROOT.glob("experiments/*.py"))

# Between them the flags of every task and model.
KINDS = [["--task", "images", "--model.kind", "timm"], ["--task", "language", "--model.kind", "hf"]]
KINDS += [["--task", "synthetic", "--model.kind", "mine.py:Net"], ["--task", "volatility"]]
KINDS += [["--task", "direction", "--model.kind", kind] for kind in ("ridge", "logistic", "hist_gbm")]
LANGUAGES = {"sh", "console", "python", "yaml", "json", "text", "diff"}
# Programs that are not started here; the files that they are given have to exist.
OTHERS = {
    "base64",
    "cd",
    "curl",
    "docker",
    "export",
    "git",
    "helm",
    "kind",
    "kubectl",
    "mlflow",
    "pip",
    "ray",
    "sha256sum",
}
# Verbs of `sp500` that are run as they are: they change nothing outside the temporary folder.
RUN = ("--help", "--version", "jobs list", "jobs render", "jobs forecast")
# Experiments whose dry run reads no prices.
DRY = {"prepare", "train", "tune"}
OPERATORS = re.compile(r"[();|&]+")
REDIRECTS = re.compile(r"[<>]+")
PATH = re.compile(r"\.?/?((?:benchmarks|cluster|docs|experiments|scripts|sp500|tests)/[\w./-]*)")
PLACEHOLDER = re.compile(r"(^|[/.-])[A-Z]{2,}([/.-]|$)|\.\.\.")
FLAG = re.compile(r"--[a-z][a-z0-9.-]*")
# Flags of other programs that the text explains.
SLURM = {"--partition", "--test-only"}
TORCHRUN = {"--model-local-dir", "--local-files-only", "--tokenizer-local-dir", "--nnodes", "--nproc-per-node"}
TRAINER = {"--gradient-accumulation-steps", "--gradient-checkpointing", "--bf16", "--fsdp", "--save-steps"}
OTHER = {"--allowed-hosts", "--entrypoint-num-gpus", "--shm-size", "--local-dir", "--save-total-limit"}
FOREIGN = {*OTHER, *SLURM, *TORCHRUN, *TRAINER}


class Parsed(BaseException):
    """The flags were right; raised in place of what the verb does with them."""


@dataclass(frozen=True)
class Block:
    """A block of code: its page, the number of its first line, its language, its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One simple command of a block, without variables that are set for it and without redirections."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line} {shlex.join(self.words)}"[:120]


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def inline(page: Path, kind: str) -> Iterator[Token]:
    for token in tokens(page):
        yield from (child for child in token.children or () if child.type == kind)


def blocks(page: Path) -> Iterator[Block]:
    for token in tokens(page):
        if token.map and token.type == "fence":
            yield Block(page, token.map[0] + 2, (token.info.split() or [""])[0], token.content)
        if token.map and token.type == "code_block":
            language = "yaml" if re.match(r"\w+: ", token.content) else "sh"
            yield Block(page, token.map[0] + 1, language, token.content)


def written(block: Block) -> Iterator[tuple[int, str]]:
    """Lines that a user types, with the number of each; a line that ends in a backslash goes on in the next."""
    typed = ""
    for number, text in enumerate(block.text.splitlines(), block.line):
        if block.language == "console" and not typed and not text.startswith("$ "):
            continue
        typed += text.removeprefix("$ ") if block.language == "console" else text
        if typed.endswith("\\"):
            typed = typed[:-1]
            continue
        yield number, typed
        typed = ""


def simple(line: str) -> Iterator[tuple[str, ...]]:
    """Commands of a line of the shell, those in pipes and substitutions too."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        found = list(lexer)
    except ValueError as error:
        raise ValueError(f"{error}: {line}") from None
    words: list[str] = []
    to_file = False
    for word in [*found, ";"]:
        if REDIRECTS.fullmatch(word):
            to_file = True
        elif to_file:
            to_file = False
        elif not OPERATORS.fullmatch(word):
            words.append(word)
        else:
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words:
                yield tuple(words)
            words = []


BLOCKS = [block for page in (*PAGES, GUIDE) for block in blocks(page)]
COMMANDS = [
    Command(block.page, line, words)
    for block in BLOCKS
    if block.language in {"sh", "console"}
    for line, text in written(block)
    for words in simple(text)
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder while commands run: the project's files by links, and those that yaml blocks describe."""
    folder = tmp_path_factory.mktemp("docs")
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "runs":
            (folder / path.name).symlink_to(path)
    for block in BLOCKS:
        if named := re.match(r"# (\S+\.(yaml|py))\n", block.text):
            file = folder / ("state/sp500/queue.yaml" if named[1] == "queue.yaml" else named[1])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
    (folder / "state" / "sp500").chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("RAY_", "SP500_", "KUBE"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("COLUMNS", "120")
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def runs(workplace: Path) -> Path:
    """Folder of runs with one of the name that examples start from."""
    config = RunConfig()
    with RunStore(workplace / "runs").open("search") as run:
        run.write_config(config.model_dump(mode="json"))
        run.write_record(make_record(config, name="search", experiment="train", arm="solo"))
    return workplace / "runs"


@pytest.fixture
def signals() -> Iterator[None]:
    """Puts the handlers back that commands replace."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def script(path: str, *words: str) -> int:
    """The exit code of a script, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *words])
        try:
            runpy.run_path(str(ROOT / path), run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def parsed(act: Callable[[], int]) -> int:
    """0 where the flags are right: whatever would be done with them is not. Else the exit code."""
    real, real_arguments = tyro.cli, argparse.ArgumentParser.parse_args

    def cli_only(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **options)
        raise Parsed

    def arguments_only(*arguments: Any, **options: Any) -> Any:
        real_arguments(*arguments, **options)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tyro, "cli", cli_only)
        patch.setattr(argparse.ArgumentParser, "parse_args", arguments_only)
        try:
            return act()
        except Parsed:
            return 0
        except SystemExit as end:
            return int(end.code or 0)


def verb(words: tuple[str, ...]) -> int:
    """The exit code of `sp500` with these words: run, or with --dry-run, or with its flags parsed alone."""
    line = " ".join(words)
    if line.startswith("jobs submit"):
        return cli.main([*words[:2], *(() if "--dry-run" in words else ("--dry-run",)), *words[2:]])
    if line == "doctor":
        return 0 if cli.main(list(words)) in {0, 1, 2} else 1  # 1, 2: something is wrong with this machine
    if not words or line.startswith(RUN):
        return cli.main(list(words))
    return parsed(lambda: cli.main(list(words)))


def experiment(path: str, words: tuple[str, ...]) -> int:
    """The exit code of an experiment: run, or with --dry-run, or with its flags parsed alone."""
    name = PurePath(path).stem
    if {"--watch", "--runs"} & set(words):  # one does not end, the other names runs that are not there
        return parsed(lambda: script(path, *words))
    if name == "compare" or "--dry-run" in words:
        return script(path, *words)
    return script(path, *words, "--dry-run") if name in DRY else parsed(lambda: script(path, *words))


def exists(words: tuple[str, ...]) -> int:
    """0 where every file of this project that the words name is there."""
    named = [found[1] for word in words if (found := PATH.fullmatch(word)) and not PLACEHOLDER.search(word)]
    assert [path for path in named if not (ROOT / path).exists()] == []
    return 0


def called(path: str) -> tuple[str, ...]:
    """The verb that a script in scripts/ ends in; empty for none."""
    found = re.search(r'-m sp500\.cli (.+) "\$@"', (ROOT / path).read_text())
    return tuple(word.strip('"').replace("$root/", "") for word in found[1].split()) if found else ()


@cache
def outcome(words: tuple[str, ...]) -> int:
    """The exit code of a command, which is 0 where it was only parsed. The same words are tried once."""
    program, rest = words[0], words[1:]
    if PurePath(program).name == "python":
        return python(rest)
    if PurePath(program).name == "sp500":
        return verb(rest)
    if program.startswith("scripts/"):
        assert os.access(ROOT / program, os.X_OK), f"{program} is not there, or not executable"
        behind = called(program)
        return parsed(lambda: cli.main([*behind, *rest])) if behind else exists(rest)
    assert PurePath(program).name in OTHERS, f"{program}: how to check it? See OTHERS"
    if "--" in rest:
        return outcome(rest[rest.index("--") + 1 :]) or exists(rest)
    return exists(rest)


def python(words: tuple[str, ...]) -> int:
    if words[0].startswith("experiments/"):
        return experiment(words[0], words[1:])
    if words[0].startswith("benchmarks/"):
        return parsed(lambda: script(words[0], *words[1:]))
    assert words[0] == "-m", f"python {words[0]}: how to check it?"
    assert importlib.util.find_spec(words[1])
    return exists(words[2:])


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_command_in_a_block_is_valid(command, runs, signals, capfd):
    try:
        code = outcome(command.words)
    except SystemExit as end:  # of a parser
        code = int(end.code or 0)
    printed = capfd.readouterr()
    assert code == 0, f"{command}\nexit code {code}\n{printed.err}\n{printed.out}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.page != GUIDE], ids=str)
def test_block_names_its_language(block):
    assert block.language in LANGUAGES


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in {"yaml", "json"}], ids=str)
def test_block_of_data_is_valid(block):
    assert json.loads(block.text) if block.language == "json" else list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_block_imports_what_there_is(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)


def test_search_space_in_a_block_can_be_searched(workplace):
    space = importlib.import_module("sp500.tuning.space")
    files = sorted((workplace / "spaces").glob("*.yaml"))
    assert files
    for file in files:
        assert space.load(str(file)).axes


@pytest.mark.parametrize("page", [*PAGES, GUIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    assert [link for link in links(page) if not leads_somewhere(page, link)] == []


def links(page: Path) -> Iterator[str]:
    for kind, attribute in (("link_open", "href"), ("image", "src")):
        yield from (str(token.attrs[attribute]) for token in inline(page, kind))
    html = [token.content for token in tokens(page) if token.type == "html_block"]
    for content in [*html, *(token.content for token in inline(page, "html_inline"))]:
        yield from re.findall(r'(?:href|src|srcset)="([^"]+)"', content)


def leads_somewhere(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    path, _, heading = link.partition("#")
    target = (page.parent / path) if path else page
    return target.exists() and (not heading or heading in headings(target))


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = [after.content for token, after in zip(tokens(page), tokens(page)[1:], strict=False)
              if token.type == "heading_open"]  # fmt: skip
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_the_text_exist(page):
    named = {token.content.split()[0] for token in inline(page, "code_inline") if token.content}
    paths = {found[1] for name in named if (found := PATH.fullmatch(name)) and not PLACEHOLDER.search(name)}
    assert {path for path in paths if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", [*PAGES, GUIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_verbs_in_the_text_exist(page):
    named = {token.content for token in inline(page, "code_inline") if token.content.startswith("sp500 ")}
    known = tuple(f"sp500 {verb}" for verb in (*cli.VERBS, "jobs", "cluster", "--help", "--version"))
    assert {text for text in named if not text.startswith(known)} == set()


@pytest.mark.parametrize("page", [*PAGES, GUIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_objects_in_the_text_exist(page):
    texts = [token.content for token in inline(page, "code_inline")]
    for name in {name for text in texts for name in re.findall(r"\bsp500(?:\.[A-Za-z_]\w*)+", text)}:
        assert pkgutil.resolve_name(name) is not None


def test_flags_in_the_text_exist(workplace, signals, capfd):
    for name in EXPERIMENTS:
        for kind in KINDS if name not in {"compare", "walk_forward"} else [[]]:
            script(f"experiments/{name}.py", *kind, "--help")
    for name in ("train", "tune"):
        script(f"experiments/{name}.py", "--command", "run", "--help")
    for words in cli.VERBS:
        with pytest.raises(SystemExit):
            cli.main([*words.split(), "--help"])
    programs = [*ROOT.glob("scripts/*"), *ROOT.glob("benchmarks/*.py")]
    scripts = [path.read_text(errors="ignore") for path in programs if path.is_file()]
    known = {flag.rstrip(".-") for flag in FLAG.findall("\n".join([capfd.readouterr().out, *scripts]))}
    named = {
        (page.name, flag)
        for page in PAGES
        for token in inline(page, "code_inline")
        for flag in FLAG.findall(token.content)
        if not flag.endswith((".", "-"))  # --data.*: all of a section
    }
    assert {(page, flag) for page, flag in named if flag not in known | FOREIGN} == set()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_has_a_row_in_the_readme(name):
    rows = [line for line in PAGES[0].read_text().splitlines() if line.startswith("|")]
    assert any(f"`experiments/{name}.py`" in row for row in rows)


@pytest.mark.parametrize("name", cli.VERBS)
def test_verb_is_documented(name):
    assert any(f"sp500 {name}" in page.read_text() for page in PAGES)


def test_tree_of_the_readme_is_that_of_the_project():
    tree = {
        line.split()[0] for block in blocks(PAGES[0]) if block.language == "text" for line in block.text.splitlines()
    }
    packages = {f"sp500/{path.parent.name}" for path in ROOT.glob("sp500/*/__init__.py")}
    assert {path for path in tree if path.startswith("sp500/")} == packages
    assert {path for path in tree if path.endswith("/") and not (ROOT / path).is_dir()} == set()


def test_readme_keeps_to_its_limits():
    text = PAGES[0].read_text()
    lines = text.splitlines()
    assert len(lines) <= 130
    assert len(text.split()) <= 1100
    assert [number for number, line in enumerate(lines, 1) if len(line) > 132] == []
