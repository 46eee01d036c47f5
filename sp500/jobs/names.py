"""Names that Kubernetes and the KubeRay operator accept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

DNS_1035 = re.compile(r"(?=.{1,63}$)[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_1123 = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LABEL_KEY = re.compile(rf"({SUBDOMAIN.pattern.replace('$', '/')}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")

# The operator appends to these names (a cluster's suffix, a Service's, a pod's), and the whole has to be a label.
LONGEST = {"RayCluster": 53, "RayJob": 47, "RayService": 47}


def script_of(argv: Sequence[str]) -> PurePosixPath:
    """Return the script of a command; of `sp500 train` that of the same experiment; else its program."""
    if PurePosixPath(argv[0]).name == "sp500" and len(argv) > 1:
        return PurePosixPath("experiments", argv[1].replace("-", "_") + ".py")
    return PurePosixPath(next((word for word in argv if word.endswith(".py")), argv[0]))


def of_command(argv: Sequence[str]) -> str:
    """Return a job's name made from its command: that of its script, or else of its program."""
    plain = re.sub(r"[^a-z0-9]+", "-", script_of(argv).name.removesuffix(".py").lower()).strip("-")
    name = plain if DNS_1035.fullmatch(plain) else f"job-{plain}"
    return name[: LONGEST["RayJob"]].rstrip("-")
