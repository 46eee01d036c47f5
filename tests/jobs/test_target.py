"""Targets: each is found by its name, another package's by its entry point, and no other file names one."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from sp500.commands.submission.submit import flags_with_options
from sp500.errors import ConfigError
from sp500.jobs import target
from sp500.jobs.local.target import LocalTarget
from sp500.jobs.spec import JobSpec

ROOT = Path(__file__).parents[2]
# Each target's own folder, and the list of them.
OWNERS = (*(f"sp500/jobs/{name}/" for name in target.BUILT_IN), "sp500/jobs/target.py", "sp500/commands/doctor.py")
ROOMS = ("sp500/jobs", "sp500/commands/jobs", "sp500/commands/submission", "sp500/commands/agent", "sp500/agent")


@pytest.mark.parametrize("name", target.BUILT_IN)
def test_target_is_found_by_its_name(name):
    found = target.find(name)
    assert (found.name, isinstance(found, target.Target)) == (name, True)


def test_no_file_but_a_targets_own_and_the_list_names_one():
    name = re.compile(rf'"({"|".join(target.BUILT_IN)})"')
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(files) > 80
    found = {str(path.relative_to(ROOT)) for path in files if name.search(path.read_text())}
    # Flags default to this machine, where the queue falls back to as well; Ray's own program has that name.
    allowed = {"sp500/jobs/client.py", "sp500/commands/submission/submit.py", "sp500/commands/agent/mcp.py"}
    allowed |= {"sp500/jobs/local_cluster/processes.py"}
    assert {path for path in found if not path.startswith(OWNERS)} <= allowed


class Mine(LocalTarget):
    name = "mine"


MINE, RENAMED = Mine(), Mine


@pytest.fixture
def install(monkeypatch):
    """Makes entry points of the group, which are forgotten afterwards."""

    def forget():
        target._references.cache_clear()
        target.find.cache_clear()

    def make(**references):
        points = [metadata.EntryPoint(name, value, target.GROUP) for name, value in references.items()]
        monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == target.GROUP else ())
        forget()

    yield make
    forget()


def test_entry_point_adds_a_target(install):
    install(mine=f"{__name__}:MINE")
    assert target.names() == [*target.BUILT_IN, "mine"]
    assert target.find("mine") is MINE


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("no_such_package.target:MINE", "cannot be loaded from no_such_package.target:MINE"),
        (f"{__name__}:GONE", "cannot be loaded"),
        (f"{__name__}:RENAMED", "of that name"),
        ("sp500.jobs.local.target:LOCAL", "of that name"),
    ],
)
def test_target_that_cannot_be_used_says_so_and_leaves_the_others_alone(install, tmp_path, reference, said):
    install(mine=reference)
    assert flags_with_options.__wrapped__()(argv=("true",), on="local").options == target.Options()
    with pytest.raises(ConfigError, match=said):
        target.find("mine").locate(JobSpec(argv=("a",)), target.Options(), tmp_path)


def test_jobs_of_a_target_that_is_gone_are_listed_and_their_executor_says_so(tmp_path):
    gone = target.find("of-a-removed-package")
    assert gone.describe({"on": gone.name}) == "of-a-removed-package"
    assert gone.billed_since(1.0, None, None) == 1.0
    for asked in (
        lambda: gone.executor({}, tmp_path),
        lambda: gone.locate(JobSpec(argv=("a",)), target.Options(), tmp_path),
        lambda: gone.request(JobSpec(argv=("a",)), "a", target.Options()),
    ):
        with pytest.raises(ConfigError, match="there are local, ray, kuberay"):
            asked()


def test_name_of_any_length_is_tried_on_the_server(monkeypatch, tmp_path):
    """The dry run has a name of its own, which may not be longer than a job's."""
    from sp500.jobs.kuberay import executor
    from sp500.jobs.kuberay.target import KUBERAY, KubeRayOptions

    asked = []
    monkeypatch.setattr(executor.KubeRayExecutor, "reachable", lambda self: None)
    monkeypatch.setattr(executor.KubeRayExecutor, "check", lambda self, request: asked.append(request))
    options = KubeRayOptions(cluster=ROOT / "cluster" / "raycluster.yaml")
    for length in (1, 41, 42, 47):
        KUBERAY.check([JobSpec(argv=("python", "-V"), name="a" * length)], options, tmp_path)
    assert [len(request["documents"][0]["metadata"]["name"]) for request in asked] == [7, 47, 47, 47]
