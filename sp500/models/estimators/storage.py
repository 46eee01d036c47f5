"""Files of estimators, by skops: no pickle, and only types of a list that the caller has from its own code.

skops by itself loads every estimator of scikit-learn, and functions of NumPy and SciPy. So the tree of a file is read
here first, without an import, and each node of it has to be plain data, an array, or an object of the list.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import skops.io
from sklearn.exceptions import InconsistentVersionWarning

from sp500.errors import CheckpointError, DataError, attempt
from sp500.machine.disk import write_atomic

log = logging.getLogger(__name__)

FILE = "model.skops"
NUMBERS = frozenset(
    {f"numpy.{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} | {"numpy.bool"}
)
PLAIN: dict[str, frozenset[str]] = {
    "DictNode": frozenset({"builtins.dict"}),
    "ListNode": frozenset({"builtins.list"}),
    "TupleNode": frozenset({"builtins.tuple"}),
    "SetNode": frozenset({"builtins.set"}),
    "JsonNode": frozenset({"builtins.str"}),
    "TypeNode": frozenset({"builtins.str", "builtins.int"}),
    "NdArrayNode": frozenset({"numpy.ndarray"}) | NUMBERS,
    "RandomGeneratorNode": frozenset({"numpy.random._generator.Generator"}),
    "RandomStateNode": frozenset({"numpy.random.mtrand.RandomState"}),
    # What it names is called, with numbers of the file: so these, whatever else may be loaded.
    "LossNode": frozenset(
        f"sklearn._loss._loss.Cy{name}"
        for name in (
            *("AbsoluteError", "ExponentialLoss", "HalfBinomialLoss", "HalfGammaLoss", "HalfMultinomialLoss"),
            *("HalfPoissonLoss", "HalfSquaredError", "HalfTweedieLoss", "HuberLoss", "PinballLoss"),
        )
    ),
}
"""Nodes of plain data, and the types that each may have."""
OBJECTS = frozenset({"ObjectNode", "TreeNode"})
"""Nodes that make an object of a class, without its __init__, and give it its state. There are no nodes of functions,
methods, partials or constructors among them."""


@dataclass(frozen=True)
class Allowed:
    """The types of which an estimator may consist, in addition to plain data.

    types: as MODULE.CLASS; packages: any class of these installed packages.
    """

    types: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Return whether a type is among them."""
        return name in self.types or name.partition(".")[0] in self.packages


def save(estimator: object, folder: Path, allowed: Allowed) -> None:
    """Write the estimator's file. Raises DataError for one that `load` would refuse."""
    try:
        data = skops.io.dumps(estimator)
        refused = find_refused(data, allowed)
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{_explain(estimator)} ({error})") from error
    if refused:
        raise DataError(f"{_explain(estimator)} (it consists of {refused[0]})")
    write_atomic(folder / FILE, data)


def load(folder: Path, allowed: Allowed) -> Any:
    """Load the estimator of a file. Raises CheckpointError for one with a type that may not be loaded."""
    path = folder / FILE
    try:
        data = path.read_bytes()
        refused = find_refused(data, allowed)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    if refused:
        raise CheckpointError(
            f"{path} holds {', '.join(refused[:3])}, of which this kind of model does not consist: it was not loaded. "
            "Put the run's own file back"
        )
    named = {_name(node) for node in _walk(data) if node["__loader__"] in OBJECTS}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InconsistentVersionWarning)

        def fail(error: Exception) -> Any:
            """Raise what a file of another version, or a damaged one, raises in its library."""
            raise CheckpointError(f"{path} cannot be loaded ({error}){_name_versions(caught)}") from error

        estimator = attempt(lambda: skops.io.loads(data, trusted=[*filter(allowed.has, named)]), fail)
    if versions := _name_versions(caught):
        log.warning("%s%s; its answers are compared with the stored one", path, versions)
    return estimator


def find_refused(data: bytes, allowed: Allowed) -> list[str]:
    """Return the types of a file, as MODULE.CLASS, that may not be loaded. Nothing is imported or made."""
    refused = []
    for node in _walk(data):
        loader, name = str(node.get("__loader__")), _name(node)
        if name not in PLAIN.get(loader, ()) and not (loader in OBJECTS and allowed.has(name)):
            refused.append(name)
    return sorted(set(refused))


def _walk(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a file, in any place of its tree."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        left = [json.loads(file.read("schema.json"))]
    while left:
        value = left.pop()
        if isinstance(value, dict) and value.keys() & {"__loader__", "__class__", "__module__"}:
            yield value
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _name(node: dict[str, Any]) -> str:
    return f"{node.get('__module__')}.{node.get('__class__')}"


def _name_versions(caught: list[warnings.WarningMessage]) -> str:
    """Return both versions of scikit-learn where a file is of another one; else an empty text."""
    for warning in caught:
        if isinstance(message := warning.message, InconsistentVersionWarning):
            return (
                f": it is of scikit-learn {message.original_sklearn_version}, and "
                f"{message.current_sklearn_version} is installed"
            )
    return ""


def _explain(estimator: object) -> str:
    return (
        f"{type(estimator).__name__} cannot be stored by skops: write save(folder) and load(folder), which store it in "
        "a format of its own"
    )
