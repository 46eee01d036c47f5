"""Thousands of runs in little memory: their details stay on the disk until a page shows them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from sp500.runs.record import RunRecord

T = TypeVar("T")


class Trimmer:
    """Makes records lean: details are left out, and parts that are equal in several records are in memory once.

    A breakdown and the growth of 1 become empty ones, which still show that the whole record has them.
    """

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def __call__(self, record: RunRecord) -> RunRecord:
        """Return the lean record."""
        metrics = dict(record.metrics)
        if "naive" in metrics:
            metrics["naive"] = self._share(metrics["naive"])
        if (metrics.get("test") or {}).get("growth"):
            metrics["test"] = metrics["test"] | {"growth": {}}
        return record.model_copy(
            update={
                "config": {key: self._share(part) for key, part in record.config.items()},
                "metrics": metrics,
                "breakdown": None if record.breakdown is None else {},
                "folds": record.folds and [{**row, "breakdown": None} for row in record.folds],
                **{name: self._share(getattr(record, name)) for name in ("machine", "versions", "data")},
            }
        )

    def _share(self, part: Any) -> Any:
        """Return an equal part that came before, if there is one."""
        return self._known.setdefault(repr(part), part)


class Stored(Mapping[str, T]):
    """Values by the name of a run, read from the disk at each access."""

    def __init__(self, names: Collection[str], read: Callable[[str], T]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
