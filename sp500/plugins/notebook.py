"""The source of a class of a notebook: its statements, and those of every name that it uses, as a file.

`inspect.getsource` does not find classes of notebooks. What a notebook ran is text, though: IPython's list `In`.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from sp500.errors import ConfigError
from sp500.machine.disk import write_atomic

WAY_OUT = "write it to a file with %%writefile FILE.py, and give 'FILE.py:NAME'"


def save(name: str, namespace: Mapping[str, object], folder: Path) -> Path:
    """Write what `name` of a notebook needs to a file in the folder, and return its path. Raises ConfigError.

    namespace: the notebook's variables.
    """
    cells = namespace.get("In")
    if not isinstance(cells, list):
        raise ConfigError(f"{name} is defined in no file: {WAY_OUT}")
    text = collect(name, [str(cell) for cell in cells], namespace)
    path = folder / f"{name.lower()}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    return path


def collect(name: str, cells: Sequence[str], namespace: Mapping[str, object]) -> str:
    """Return the statements that define `name` and all that it uses, imports first, then in the order of the cells."""
    found: dict[tuple[int, int], str] = {}
    imports: dict[tuple[int, int], str] = {}
    wanted, seen = [name], set[str]()
    while wanted:
        this = wanted.pop()
        if this in seen or (this != name and this not in namespace):
            continue  # a builtin, or a name of its own
        seen.add(this)
        place, statement, text = _definition(this, cells)
        (imports if isinstance(statement, (ast.Import, ast.ImportFrom)) else found)[place] = text
        wanted += [
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and not hasattr(builtins, node.id)
        ]
    parts = [imports[place] for place in sorted(imports)] + [found[place] for place in sorted(found)]
    return "\n\n".join(dict.fromkeys(parts)) + "\n"


def _definition(name: str, cells: Sequence[str]) -> tuple[tuple[int, int], ast.stmt, str]:
    """Return the place, the statement and the text of the last definition of a name. Raises ConfigError."""
    for number, cell in reversed(list(enumerate(cells))):
        try:
            statements = ast.parse(cell).body
        except SyntaxError:  # of a cell that did not run; magics are calls in this list
            continue
        for statement in reversed(statements):
            if name in _defines(statement):
                decorators = getattr(statement, "decorator_list", [])
                first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
                lines = cell.splitlines()[first - 1 : statement.end_lineno]
                return (number, first), statement, "\n".join(lines)
    raise ConfigError(f"{name} is used, but no cell of the notebook defines it as a statement: {WAY_OUT}")


def _defines(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top of a cell gives a value."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name.split(".")[0]) for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}
