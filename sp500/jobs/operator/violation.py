"""A rule that a manifest breaks, and what decides whether a rule holds: the operator's feature gates."""

from __future__ import annotations

from dataclasses import dataclass

# Gates that KubeRay 1.7 opens by itself.
OPEN = frozenset(
    {"RayClusterStatusConditions", "RayJobDeletionPolicy", "RayMultiHostIndexing", "RayServiceIncrementalUpgrade"}
)


@dataclass(frozen=True)
class Violation:
    """One broken rule: the field, what it is, and the way out.

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


Gates = frozenset[str]


def check_gate(path: str, gate: str, gates: Gates) -> list[Violation]:
    """The violation of using a field whose gate is not open."""
    if gate in gates:
        return []
    return [Violation(path, "is set", f"open the operator's feature gate {gate}, or leave it out")]
