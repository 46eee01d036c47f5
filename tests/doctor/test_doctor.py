"""`sp500 doctor` as a user calls it: a process, its lines, its exit code."""

import json
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import forks
import pytest

from sp500.cli import main
from sp500.commands import doctor as verb

ROOT = Path(__file__).parents[2]
CONFIGURED = (
    "RAY_ADDRESS",
    "RAY_API_SERVER_ADDRESS",
    "RAY_AUTH",
    "RAY_TMPDIR",
    "KUBE",
    "SP500_",
    "XDG_STATE",
    "FORCE_COLOR",
)


def environment(tmp_path, given, path=()):
    """A home of its own, with nothing configured but what is given, and packages of these folders."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(CONFIGURED)}
    return bare | {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))} | given


@pytest.fixture
def doctor(tmp_path):
    """Runs the verb in that home."""

    def run(*words, **given):
        return forks.run(["sp500", "doctor", *words], cwd=tmp_path, env=environment(tmp_path, given))

    return run


LOOK = """
import json, os, sys
from pathlib import Path
from sp500.doctor import check, machine, versions
folder = Path(sys.argv[1])
checks = check.run_probes([*versions.probes(), *machine.probes(folder, folder, os.environ)])
print(json.dumps([one.name for one in checks if one.state == "wrong"]))
"""


@pytest.fixture(scope="module")
def unwell(tmp_path_factory):
    """What is wrong with this machine itself, say a container with a small /dev/shm, and no fault of the verb."""
    folder = tmp_path_factory.mktemp("anywhere")
    # In a process of its own: what other tests have imported may have put packages on the path.
    done = subprocess.run([sys.executable, "-c", LOOK, folder], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def found(done):
    answer = json.loads(done.stdout)
    checks = {one["name"]: one for one in answer["checks"]}
    assert len(checks) == len(answer["checks"])
    assert answer["ok"] == (done.returncode == 0) == ("wrong" not in {one["state"] for one in checks.values()})
    return checks


def wrong(done):
    return {name for name, one in found(done).items() if one["state"] == "wrong"}


def test_machine_where_all_is_well_exits_0_with_a_line_per_check(doctor, dashboard, kubernetes, tmp_path, unwell):
    if unwell:
        pytest.skip(f"this machine itself is not well: {', '.join(unwell)}")
    config = kubernetes.kubeconfig(tmp_path / "config")
    given = {
        "RAY_ADDRESS": dashboard(token="secret").url,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "secret",
        "KUBECONFIG": config,
        # Of a company, where nothing of this machine can be reached.
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    done = doctor(**given)
    lines, (blank, count) = done.stdout.splitlines()[:-2], done.stdout.splitlines()[-2:]
    assert (done.returncode, done.stderr, blank) == (0, "", ""), done.stdout
    assert [line.split()[:3] for line in lines if not line.startswith("ok")] == [["skipped", "token", "file"]]
    assert count == f"{len(lines) - 1} ok, 1 skipped"
    assert len(lines) == len(found(doctor("--json", **given))) == 22
    assert "secret" not in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config"]


def test_machine_without_clusters_has_nothing_wrong(doctor, unwell):
    done = doctor("--json")
    assert wrong(done) == unwell
    assert {found(done)[name]["state"] for name in ("ray address", "kubernetes")} == {"skipped"}


@pytest.mark.parametrize(("where", "name"), [("ray", "ray address"), ("kuberay", "kubernetes")])
def test_cluster_asked_for_that_is_nowhere_exits_1(doctor, where, name, unwell):
    done = doctor("--on", where, "--json")
    assert (done.returncode, wrong(done)) == (1, unwell | {name})


def test_cluster_set_that_does_not_answer_exits_1_unless_jobs_run_here(doctor, nowhere, unwell):
    assert wrong(doctor("--json", RAY_ADDRESS=nowhere)) == unwell | {"ray address"}
    assert wrong(doctor("--json", "--on", "local", RAY_ADDRESS=nowhere)) == unwell


def test_versions_that_do_not_fit_exit_1_and_are_named(tmp_path, unwell):
    for name, version in (("ray", "2.40.0"), ("rich", "9.0")):
        folder = tmp_path / "packages" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    command = [sys.executable, "-m", "sp500.cli", "doctor", "--json"]  # an interpreter that looks for packages anew
    there = environment(tmp_path, {}, [tmp_path / "packages"])
    done = subprocess.run(command, env=there, cwd=tmp_path, capture_output=True, text=True, check=False)
    checks = found(done)
    assert wrong(done) == unwell | {"requirements"}
    assert re.search(r"ray\S*2\.60, .* ray 2\.40\.0", checks["requirements"]["found"])
    assert re.search(r"rich>=14, .* rich 9\.0", checks["requirements"]["found"])


def test_answer_comes_without_torch_ray_or_a_cluster_library():
    code = (
        "import sys; from sp500.commands import doctor; code = doctor.main(['--json', '--on', 'local']);"
        "print(code, *{'torch', 'ray', 'kubernetes', 'numpy', 'pandas'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert len(done.stderr.split()) == 1


def test_home_that_is_missing_gets_a_line_and_the_other_checks(monkeypatch, tmp_path):
    """As in a container whose user has neither a name nor HOME."""
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    [home] = dict(verb.probes(verb.Doctor()))["home folder"]()
    assert f"{tmp_path}/gone" in home.found
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    assert main(["jobs", "list"]) == 2
    probes = dict(verb.probes(verb.Doctor()))
    [home] = probes["home folder"]()
    assert (str(home.state), "set HOME" in home.advice) == ("wrong", True)
    assert "state folder" in probes
