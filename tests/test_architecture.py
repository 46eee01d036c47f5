"""The shape of the code: budgets, docstrings, and what an import may load."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sp500.config import kinds

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("sp500/**/*.py"), *ROOT.glob("experiments/*.py")])
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def public(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, (*Function.__args__, ast.ClassDef)) and not node.name.startswith("_"):
            yield f"{owner}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{node.name}.")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_longer_than_400_lines():
    sizes = {name(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: size for path, size in sizes.items() if size > 400} == {}


def test_no_function_is_longer_than_40_lines():
    sizes = {
        f"{name(path)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, Function)
    }
    assert {function: size for function, size in sizes.items() if size > 40} == {}


def test_every_module_and_everything_public_has_a_docstring():
    missing = [
        f"{name(path)} {member}"
        for path in SOURCES
        for member, node in [("module", parsed(path)), *public(parsed(path).body)]
        if not ast.get_docstring(node)
    ]
    assert missing == []


# A noun phrase or a relative clause says what the value is, and not what the call does. Properties may be nouns.
CLAUSE = {"What", "Whether", "Where", "Which", "How", "Why", "Who", "When", "That", "As"}
NOUN = {"The", "A", "An", "Its"}


def is_property(function: ast.AST) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_no_docstring_of_a_function_begins_with_a_noun_phrase_or_a_relative_clause():
    docstrings = {
        f"{name(path)}:{node.lineno} {node.name}": docstring.splitlines()[0]
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, Function) and (docstring := ast.get_docstring(node))
        if docstring.split()[0].strip(",.:") in (CLAUSE if is_property(node) else CLAUSE | NOUN)
    }
    assert docstrings == {}


def test_no_module_has_a_name_without_meaning():
    assert {path.stem for path in SOURCES}.isdisjoint({"utils", "util", "helpers", "common", "misc"})


# In an order in which none loads what a later one must not: all are imported by one process, one after the other.
LEAN = {
    "sp500.jobs.local.supervisor": {"numpy", "ray", "pydantic", "yaml", "multiprocessing"},
    "sp500.cli": {"numpy", "pandas", "torch", "ray", "tyro"},
    "sp500.jobs.ray.executor": {"numpy", "pandas", "torch", "ray", "aiohttp", "sp500.config"},
    "sp500.jobs.manifests.rayjob, sp500.jobs.manifests.rules": {"numpy", "pandas", "torch", "ray", "sp500.config"},
    "sp500.jobs.kuberay.executor": {"numpy", "pandas", "torch", "ray", "kubernetes", "urllib3"},
    "sp500.config, sp500.console.entry": {"numpy", "pandas", "torch", "ray"},
    "sp500.commands.agent.mcp": {"numpy", "pandas", "torch", "ray", "mcp", "anyio"},
    "sp500.commands.cluster.deploy, sp500.commands.submission.render, sp500.commands.forecast": {
        "numpy",
        "pandas",
        "torch",
        "ray",
    },
    "sp500.runs.cost, sp500.commands.rate_table": {"numpy", "pandas", "torch", "ray", "scipy"},
    "sp500.report.page, sp500.data.pipeline": {"torch", "ray"},
    "sp500.studies.train": {"ray"},
}
IMPORT_ALL = """
import json, os, sys
found = {}
for names in json.loads(sys.argv[1]):
    exec("import " + names)
    found[names] = [*sys.modules]
for name in json.loads(sys.argv[2]):
    exec("import " + name)
import ray
found["all"] = {"files": os.listdir(), "ray is up": ray.is_initialized()}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Modules that are loaded after each import of `LEAN`; and files and Ray after those of all modules."""
    modules = [
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in SOURCES if path.stem != "__init__"
    ]
    code = [sys.executable, "-c", IMPORT_ALL, json.dumps([*LEAN]), json.dumps(modules)]
    environment, folder = {**os.environ, "PYTHONPATH": str(ROOT)}, tmp_path_factory.mktemp("imported")
    return json.loads(subprocess.run(code, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.parametrize("modules", LEAN)
def test_import_loads_only_what_it_must(imported, modules):
    assert LEAN[modules].isdisjoint(imported[modules])


def test_importing_everything_makes_no_file_and_starts_no_ray(imported):
    assert imported["all"] == {"files": [], "ray is up": False}


OTHER_MEANINGS = {
    "sp500/config/train.py": {"linear"},  # a schedule
    "sp500/training/step.py": {"linear"},
    "sp500/training/throughput.py": {"images"},  # a unit
    "sp500/runs/record.py": {"images"},
    "sp500/formatting.py": {"logistic"},  # a naive forecast
    "sp500/serving/media_requests.py": {"images"},  # a field of a request
    "sp500/tuning/presets.py": {"mlp", "lstm", "transformer"},  # spaces, as a user would write them
}


def test_no_file_but_an_owners_own_and_its_list_names_a_task_or_a_model():
    owners = {"sp500/tasks/settings.py", "sp500/models/settings.py"}
    owners |= {f"sp500/tasks/{task}.py" for task in kinds.tasks()} | {
        f"sp500/models/{kind}.py" for kind in kinds.models()
    }
    names = {*kinds.tasks(), *kinds.models()}
    named = {}
    for path in SOURCES:
        words = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)}
        if name(path) not in owners and (own := words & names - OTHER_MEANINGS.get(name(path), set())):
            named[name(path)] = own
    assert named == {}


def test_only_programs_read_the_command_line():
    readers = [str(path.relative_to(ROOT)) for path in SOURCES if "sys.argv" in path.read_text()]
    programs = {"sp500/cli.py", "sp500/jobs/deadline.py", "sp500/jobs/local/supervisor.py"}
    assert all(name.startswith("experiments/") or name in programs for name in readers)


def test_only_one_module_counts_cores_so_that_limits_of_a_container_hold_everywhere():
    counting = re.compile(r"\b(?:cpu_count|sched_getaffinity)\b")
    assert [name(path) for path in SOURCES if counting.search(path.read_text())] == ["sp500/machine/cores.py"]


PRIVATE = re.compile(r"\b(?:ray|torch)(?:\.[a-z_]+)*\._[a-z]\w*|dashboard_sdk|inspect\.unwrap\(torch")


def test_every_private_api_of_ray_and_torch_is_listed_with_a_test():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(sp500[\w.]+)` \|.*\| `(tests/[\w/]+\.py)` \|$", page, re.MULTILINE)
    users = {
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for path in SOURCES
        if PRIVATE.search(path.read_text())
    }
    assert users == {module for module, _ in rows}
    assert [test for _, test in rows if not (ROOT / test).exists()] == []


def test_broad_excepts_are_few_and_each_says_why():
    lines = {
        f"{name(path)}:{number}": line
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"except (Exception|BaseException)|except:", line)
    }
    assert len(lines) <= 10, lines
    assert [place for place, line in lines.items() if "#" not in line] == []


# Pods run Linux, whatever this machine is; and folders of a system are none of a project's.
OF_PODS = {"sp500/jobs/cluster/transfer_pod.py", "sp500/jobs/command_words.py"}
OF_SYSTEMS = re.compile(
    r"fcntl|prctl|prlimit|RLIMIT_\w+|\w*cgroup\w*|CGROUP|sched_getaffinity|sys\.platform|/proc\b.*|/sys/fs.*"
)


def names_of_systems(path: Path) -> list[str]:
    """What a file names of an operating system, in its code and not in its docstrings."""
    tree = parsed(path)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    named = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            named.append(node.value)
        elif isinstance(node, ast.Attribute):
            named += [node.attr, ast.unparse(node)]
        elif isinstance(node, ast.Name | ast.arg | ast.alias):
            named.append(getattr(node, "id", None) or getattr(node, "arg", None) or node.name)
    return [name for name in named if OF_SYSTEMS.fullmatch(name)]


def test_only_the_package_of_the_machine_names_what_one_system_has():
    files = [path for path in [*SOURCES, *ROOT.glob("scripts/*.py")] if path.parent != ROOT / "sp500/machine"]
    named = {name(path): names_of_systems(path) for path in files if name(path) not in OF_PODS | {"scripts/locks.py"}}
    assert {path: names for path, names in named.items() if names} == {}
    assert {"/proc/driver/nvidia/gpus", "/sys/fs/cgroup", "sys.platform"} <= {
        found for path in ROOT.glob("sp500/machine/*.py") for found in names_of_systems(path)
    }
