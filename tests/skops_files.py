"""Files of skops with nodes that no estimator has: what an attacker would write."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sp500.models.estimators import storage


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the tree of a file; its arrays stay."""
    path = folder / storage.FILE
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    schema = json.loads(parts["schema.json"])
    change(schema)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in (parts | {"schema.json": json.dumps(schema).encode()}).items():
            file.writestr(name, data)
    path.write_bytes(buffer.getvalue())


def node(loader: str, name: str, **rest: Any) -> dict[str, Any]:
    module, _, of = name.rpartition(".")
    return {"__loader__": loader, "__module__": module, "__class__": of, **rest}


def plain(value: Any) -> dict[str, Any]:
    return node("JsonNode", "builtins.str", content=json.dumps(value), is_json=True)


def sequence(kind: str, *items: Any) -> dict[str, Any]:
    return node(f"{kind.title()}Node", f"builtins.{kind}", content=[*items])


def attacks(mark: Path) -> dict[str, dict[str, Any]]:
    """Nodes that leave a mark if they are made, or name what is not of the kind."""
    words = f"open({str(mark)!r}, 'w').close()"
    empty = node("DictNode", "builtins.dict", content={}, key_types=sequence("list"))

    def partial(function: str, argument: str) -> dict[str, Any]:
        parts = {"func": node("TypeNode", function), "args": sequence("tuple", plain(argument)), "kwds": empty}
        return node("PartialNode", "functools.partial", content={**parts, "namespace": empty})

    def reduced(loader: str, function: str, argument: str) -> dict[str, Any]:
        args = sequence("tuple", plain(argument))
        return node(loader, function, content=args, __reduce__={"args": args})

    return {
        "builtins.eval": reduced("ConstructorFromReduceNode", "builtins.eval", words),
        "builtins.eval as a loss": reduced("LossNode", "builtins.eval", words),
        "builtins.eval as a type": node("TypeNode", "builtins.eval"),
        "os.system": reduced("ConstructorFromReduceNode", "os.system", f"touch {mark}"),
        "posix.system as a loss": reduced("LossNode", "posix.system", f"touch {mark}"),
        "os.system as a function": node("FunctionNode", "os.system"),
        "functools.partial of eval": partial("builtins.eval", words),
        "functools.partial of system": partial("os.system", f"touch {mark}"),
        "operator.methodcaller": node("OperatorFuncNode", "operator.methodcaller", attrs=sequence("tuple", plain("a"))),
        "another estimator": node("ObjectNode", "sklearn.ensemble._forest.RandomForestRegressor"),
        "an object of a package": node("ObjectNode", "sklearn.preprocessing._function_transformer.FunctionTransformer"),
        "a program": node("ObjectNode", "subprocess.Popen"),
    }
