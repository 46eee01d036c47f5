"""A rule that a manifest breaks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """One broken rule: the field, what is wrong with it, and what to do.

    `ours`: the operator would accept it, and it would not work.
    """

    path: str
    found: str
    remedy: str
    ours: bool = False
    rule: str = ""
    """Id of a security rule; empty for others."""

    def __str__(self) -> str:
        return f"{self.path} {self.found}; {self.remedy}" + (f" [{self.rule}]" if self.rule else "")
