"""Whether a class or function of the user can be a task or a model, read from its syntax tree.

Nothing runs and nothing is imported, so a wrong signature is refused within milliseconds. What a base class of another
file defines cannot be seen here. The later import finds what is missing there.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sp500.errors import ConfigError
from sp500.plugins.reference import Reference

REQUIRED = {
    "prepare": "def prepare(self, config: RunConfig) -> Dataset:",
    "loss": "def loss(self, output: Tensor, target: Tensor) -> Tensor:",
    "judge": "def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> dict:",
}
"""What a task has to define, as the line to write."""
OPTIONAL = {
    "model": "def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:",
    "kept": "def kept(self, output: Tensor, target: Tensor) -> Tensor:",
    "predictions": "def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:",
    "sample": "def sample(self, model: nn.Module, dataset: Dataset) -> str:",
    "excess_sharpe": (
        "def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:"
    ),
}
BUILT_IN = {"Returns", "Direction", "Images", "Language", "Synthetic"}
"""Classes of this package's tasks."""
MODEL = "(config, dataset, ...)"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Module:
    """The top level of a file."""

    where: str
    defined: dict[str, ast.stmt]

    def find(self, name: str, kind: str) -> ast.ClassDef | Function:
        """The class or function of that name. Raises ConfigError with what is there."""
        node = self.defined.get(name)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return node
        names = sorted(key for key, value in self.defined.items() if isinstance(value, ast.ClassDef | ast.FunctionDef))
        near = difflib.get_close_matches(name, names, n=1)
        there = f"did you mean {near[0]}?" if near else f"it defines {', '.join(names) or 'no class or function'}"
        raise ConfigError(f"{self.where} has no {kind} {name}; {there}")

    def methods(self, of: ast.ClassDef) -> tuple[dict[str, Function], set[str]]:
        """Methods of a class with those that it inherits within the file; names of bases that come from elsewhere."""
        inherited_methods: dict[str, Function] = {}
        foreign = set[str]()
        for base in of.bases:
            name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            inside = self.defined.get(name)
            if isinstance(inside, ast.ClassDef) and inside is not of:
                inherited, further = self.methods(inside)
                inherited_methods |= inherited
                foreign |= further
            else:
                foreign |= {name} - {"Task", "Protocol", "ABC", "object", "Generic"}
        own = {node.name: node for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        return inherited_methods | own, foreign


def check_task(reference: Reference) -> None:
    """Raises ConfigError with the first thing that a task lacks, and the line to add."""
    module = _parse(reference)
    node = module.find(reference.name, "class")
    if not isinstance(node, ast.ClassDef):
        raise ConfigError(f"{module.where}:{node.lineno}: a task is a class, and {node.name} is a function")
    here = f"{module.where}:{node.lineno}: class {node.name}"
    methods, foreign = module.methods(node)
    if not node.bases:
        raise ConfigError(f"{here} has no base class; write 'class {node.name}(Task):', with 'from sp500 import Task'")
    for name, line in REQUIRED.items():
        if name not in methods and not foreign:
            raise ConfigError(f"{here} has no method {name}; add '{line}'")
    for name, line in (REQUIRED | OPTIONAL).items():
        if method := methods.get(name):
            expected = [argument.arg for argument in _parse_line(line).args.args]
            _check_takes(method, expected, f"{module.where}:{method.lineno}: {name}", f"write '{line}'")
    if start := methods.get("__init__"):
        where = f"{module.where}:{start.lineno}: __init__"
        _check_takes(start, ["self", "config"], where, "a task is made with its RunConfig or with nothing", least=1)


def check_judge(reference: Reference) -> None:
    """Raises ConfigError for a task with a loss of its own and the judge of a built-in one.

    Only where a new run begins: runs that were trained so can still be loaded.
    """
    module = _parse(reference)
    node = module.find(reference.name, "class")
    assert isinstance(node, ast.ClassDef)
    methods, foreign = module.methods(node)
    if "loss" in methods and "judge" not in methods and (base := min(foreign & BUILT_IN, default="")):
        raise ConfigError(describe_judge(f"{module.where}:{methods['loss'].lineno}: class {node.name}", base))


def describe_judge(where: str, base: str) -> str:
    """That a task's loss is not what its forecasts are judged by, and what to write."""
    return (
        f"{where} has a loss of its own and inherits judge from {base}, which compares by another: its verdict would be"
        f" wrong. Add '{REQUIRED['judge']}', which may return super().judge(outputs, dataset) if that is meant"
    )


def check_model(reference: Reference, options: Mapping[str, Any]) -> None:
    """Raises ConfigError where a model cannot be made from a config, a dataset and these options."""
    module = _parse(reference)
    node = module.find(reference.name, "class or function")
    where, first, maker = f"{module.where}:{node.lineno}: {node.name}", list[str](), node
    if isinstance(node, ast.ClassDef):
        if not node.bases:
            raise ConfigError(f"{where} has no base class; a model inherits from torch.nn.Module")
        methods, foreign = module.methods(node)
        if "__init__" not in methods:
            if foreign and _only_torch(node):
                raise ConfigError(f"{where} has no __init__; add 'def __init__(self, config, dataset):'")
            return  # the base class's, which is seen when it is imported
        if "forward" not in methods and _only_torch(node):
            raise ConfigError(f"{where} has no method forward; add 'def forward(self, x: Tensor) -> Tensor:'")
        first, maker = ["self"], methods["__init__"]
    assert not isinstance(maker, ast.ClassDef)
    way_out = f"a model is made by {node.name}{MODEL}, with its options by name"
    _check_takes(maker, [*first, "config", "dataset"], where, way_out, named=options)
    _check_options(maker, len(first) + 2, options, f"model {node.name}")


def _only_torch(node: ast.ClassDef) -> bool:
    return [ast.unparse(base).rpartition(".")[2] for base in node.bases] == ["Module"]


def _parse(reference: Reference) -> _Module:
    return _module(reference.path, reference.source)


@lru_cache
def _module(path: Path, text: bytes) -> _Module:
    """Cached, since every config of a search needs it."""
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: is not valid Python ({error.msg})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not Python ({error})") from None
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined[node.name] = node
    return _Module(path.name, defined)


def _parse_line(line: str) -> Function:
    [node] = ast.parse(f"{line} ...").body
    assert isinstance(node, ast.FunctionDef)
    return node


def _check_takes(
    function: Function,
    expected: list[str],
    where: str,
    way_out: str,
    *,
    least: int | None = None,
    named: Mapping[str, Any] | None = None,
) -> None:
    """Raises ConfigError unless the function can be called with as many arguments (or with `least`) by place."""
    if isinstance(function, ast.AsyncFunctionDef):
        raise ConfigError(f"{where} is async, and is called as a plain function; {way_out}")
    arguments = function.args
    placed = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    needed = len(placed) - len(arguments.defaults)
    missing = [name for name in placed[len(expected) : needed] if name not in (named or {})]
    swapped = placed[: len(expected)] != expected and sorted(placed[: len(expected)]) == sorted(expected)
    fits = (arguments.vararg or len(placed) >= (least or len(expected))) and not swapped
    if not fits or missing:
        raise ConfigError(f"{where} takes ({', '.join(placed)}), not ({', '.join(expected)}); {way_out}")
    required = [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    for name in required:
        if named is None:
            raise ConfigError(f"{where} requires {name}= by name, which nobody gives; {way_out}")
        if name not in named:
            raise ConfigError(f"{where} requires {name}; give it with --model.options.{name} VALUE")


def _check_options(function: Function, first: int, options: Mapping[str, Any], where: str) -> None:
    arguments = function.args
    if arguments.kwarg:
        return
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)[first:]]
    names += [argument.arg for argument in arguments.kwonlyargs]
    for option in options:
        if option not in names:
            near = difflib.get_close_matches(option, names, n=1)
            there = f"did you mean {near[0]}?" if near else f"its options: {', '.join(names) or 'none'}"
            raise ConfigError(f"{where} has no option {option}; {there}")
