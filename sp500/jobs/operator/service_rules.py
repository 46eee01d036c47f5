"""The operator's rules for a RayService and a RayCronJob (KubeRay 1.7), beside those for what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sp500.jobs.manifests.manifest import Document, clusters, section
from sp500.jobs.operator import job_rules
from sp500.jobs.operator.violation import Gates, Violation, check_gate

GO_DURATION = re.compile(r"\+?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")
UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
# Fields of a cron schedule: their name, smallest and largest number, and the names that stand for numbers.
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
CRON = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 6, DAYS),
)
SHORTHANDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def initializing_timeout(service: Document) -> Iterator[Violation]:
    """How long a service may take to start is a positive time."""
    annotations = section(section(service, "metadata"), "annotations")
    timeout = annotations.get("ray.io/initializing-timeout")
    if timeout is None:
        return
    text = str(timeout)
    whole = re.fullmatch(r"\d+", text) or GO_DURATION.fullmatch(text)
    if not whole or not re.search(r"[1-9]", text):
        path = "metadata.annotations[ray.io/initializing-timeout]"
        yield Violation(path, f"{text!r} is not a positive duration", "give seconds, or a duration such as 10m")


def service_cluster(service: Document) -> Iterator[Violation]:
    """What a service's cluster may not say, since the operator replaces it by another."""
    for cluster in clusters(service):
        head_service = section(section(cluster.head.body, "headService"), "metadata")
        if head_service.get("name"):
            path = f"{cluster.head.path}.headService.metadata.name"
            yield Violation(path, "is set", "two clusters would share it during an upgrade; leave it out")


def upgrade(service: Document) -> Iterator[Violation]:
    """How a new cluster takes over is known, and by what steps."""
    spec = section(service, "spec")
    delay = spec.get("rayClusterDeletionDelaySeconds", 0)
    if isinstance(delay, int) and delay < 0:
        yield Violation("spec.rayClusterDeletionDelaySeconds", f"is {delay}", "give 0 or more")
    path, kind = "spec.upgradeStrategy", section(spec, "upgradeStrategy").get("type")
    if kind not in {None, *UPGRADES}:
        yield Violation(f"{path}.type", f"is {kind}", f"give one of {', '.join(UPGRADES)}")
    if kind != "NewClusterWithIncrementalUpgrade":
        return
    for cluster in clusters(service):
        if not cluster.autoscaling:
            problem = "is not true for an incremental upgrade"
            yield Violation(f"{cluster.path}.enableInTreeAutoscaling", problem, "set it to true")
    yield from _steps(section(section(spec, "upgradeStrategy"), "clusterUpgradeOptions"))


def _steps(options: Document) -> Iterator[Violation]:
    path = "spec.upgradeStrategy.clusterUpgradeOptions"
    if not options:
        yield Violation(
            path, "is unset for an incremental upgrade", "give stepSizePercent, intervalSeconds and a gateway"
        )
        return
    surge, step = options.get("maxSurgePercent", 100), options.get("stepSizePercent", -1)
    for key, value in (("maxSurgePercent", surge), ("stepSizePercent", step)):
        if not isinstance(value, int) or not 0 <= value <= 100:
            yield Violation(f"{path}.{key}", f"is {options.get(key)}", "give 0 to 100")
    if isinstance(step, int) and isinstance(surge, int) and step > surge:
        yield Violation(f"{path}.stepSizePercent", f"{step} is above maxSurgePercent {surge}", "make it that or less")
    interval = options.get("intervalSeconds")
    if not isinstance(interval, int) or interval <= 0:
        yield Violation(f"{path}.intervalSeconds", f"is {interval}", "give 1 or more")
    if not options.get("gatewayClassName"):
        yield Violation(f"{path}.gatewayClassName", "is empty", "name the GatewayClass that shifts the traffic")


def cron_gate(cron: Document, gates: Gates) -> Iterator[Violation]:
    """A RayCronJob needs its feature gate."""
    yield from check_gate("spec", "RayCronJob", gates)


def schedule(cron: Document) -> Iterator[Violation]:
    """When to start is a standard cron schedule, and where that time holds stands in timeZone."""
    spec = section(cron, "spec")
    text = str(spec.get("schedule", ""))
    if "TZ=" in text:
        yield Violation("spec.schedule", f"{text!r} names a time zone", "give it as spec.timeZone")
    elif wrong := _not_cron(text):
        yield Violation(
            "spec.schedule", f"{text!r} is not a valid schedule ({wrong})", "give five fields, such as 0 3 * * 1-5"
        )
    zone = spec.get("timeZone")
    if zone is None:
        return
    try:
        ZoneInfo(str(zone))
    except (ZoneInfoNotFoundError, ValueError):
        yield Violation("spec.timeZone", f"{zone!r} is not a time zone", "give a name such as Europe/Zurich")


def _not_cron(text: str) -> str:
    """What is wrong with a schedule; empty if nothing."""
    if text in SHORTHANDS or (text.startswith("@every ") and GO_DURATION.fullmatch(text.removeprefix("@every "))):
        return ""
    fields = text.split()
    if len(fields) != len(CRON):
        return f"{len(fields)} fields"
    for field, (name, low, high, names) in zip(fields, CRON, strict=True):
        for part in field.lower().split(","):
            if not _in_range(part, low, high, names):
                return f"{name} {field}"
    return ""


def _in_range(part: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    """Whether `part` is *, a number, or a range, with or without a step."""
    span, slash, step = part.partition("/")
    if slash and not (step.isdigit() and int(step) > 0):
        return False
    if span in {"*", "?"}:
        return True
    ends = [names.index(end) + low if end in names else int(end) if end.isdigit() else -1 for end in span.split("-", 1)]
    return all(low <= end <= high for end in ends) and ends == sorted(ends)


SERVICE_RULES = (initializing_timeout, job_rules.authentication, service_cluster, upgrade)
CRON_RULES = (schedule,)
CRON_GATED = (cron_gate,)
