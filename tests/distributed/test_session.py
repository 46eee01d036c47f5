"""Ray on this machine is out of the reach of its other users: token, session folder and ports."""

import os
import socket
import subprocess
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
from ray._private.worker import global_worker

from sp500.distributed import session, simulated_nodes
from sp500.errors import ResourcesError
from sp500.machine.memory import run_in_subprocess
from sp500.machine.ray_token import ensure_ray_token, ray_token

NOBODY = 65534


def observed(home: Path, simulated: bool) -> dict[str, object]:
    """What another user of the machine could find of a running cluster, and what is left of it."""
    os.environ["HOME"] = str(home)
    os.umask(0o022)
    with simulated_nodes.simulate(2) if simulated else session.connect():
        folder = Path(global_worker.node.get_session_dir_path())
        family = psutil.Process().children(recursive=True)
        listening = [
            connection.laddr.ip
            for process in family
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        found: dict[str, object] = {
            "token": (home / ".ray" / "auth_token").stat().st_mode & 0o777,
            "folder": folder.parents[1].stat().st_mode & 0o777,
            "entered": enters(folder) if os.getuid() == 0 else None,
            "listening": sorted(set(listening)),
            "longest": max(len(str(path)) for path in (folder / "sockets").iterdir()),
            "cpus": ray.cluster_resources()["CPU"],
        }
    return found | {"left": folder.parents[1].exists()}


def observed_of_both(home: Path) -> list[dict[str, object]]:
    return [observed(home, simulated) for simulated in (False, True)]


def enters(folder: Path) -> bool:
    """Whether a process of another user can list the folder."""
    done = subprocess.run(["ls", str(folder)], capture_output=True, user=NOBODY, group=NOBODY, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """Of a cluster of one node, and of one of simulated nodes, what `observed` says."""
    return run_in_subprocess(observed_of_both, tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize("simulated", [False, True], ids=["one node", "simulated nodes"])
def test_cluster_of_this_machine_is_closed_to_its_other_users(clusters, simulated):
    found = clusters[simulated]
    assert (found["token"], found["folder"]) == (0o600, 0o700)
    assert not found["entered"]
    if simulated:  # Ray 2.60 replaces the loopback address of a single local node by the machine's own
        assert {address.removeprefix("::ffff:") for address in found["listening"]} == {"127.0.0.1"}
    assert found["longest"] <= 107
    assert found["cpus"] >= 1
    assert not found["left"]


def test_session_lies_in_the_folder_for_temporary_files_unless_its_sockets_would_have_too_long_names(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    with session.private_session():
        folder = Path(os.environ["RAY_TMPDIR"])
        deepest = Path(folder, "ray", "session_2026-11-22_01-15-45_301864_1234567", "sockets", "plasma_store.12")
        assert len(str(deepest)) < 107
        with socket.socket(socket.AF_UNIX) as listener:
            deepest.parent.mkdir(parents=True)
            listener.bind(str(deepest))
    assert not folder.exists()
    assert os.environ["RAY_TMPDIR"] == str(long)


def test_token_that_ray_made_readable_for_all_is_closed_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("secret\n")
    path.chmod(0o644)
    assert ray_token() == "secret"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("variable", "value"), [("RAY_AUTH_TOKEN", "mine"), ("RAY_AUTH_TOKEN_PATH", "/a"), ("RAY_AUTH_MODE", "disabled")]
)
def test_no_token_is_made_where_another_is_named_or_none_is_wanted(tmp_path, monkeypatch, variable, value):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    ensure_ray_token()
    assert list(tmp_path.iterdir()) == []


def test_home_that_holds_no_files_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(ResourcesError, match="auth_token: the token of Ray cannot be kept there"):
        ray_token()


def test_ray_that_starts_too_slowly_is_started_again(monkeypatch):
    """Ray's own limit of 30 s cannot be reached on purpose without minutes of load, so its error is raised here."""
    slow = Exception("The current node timed out during startup. This could happen because")
    starts = []

    def init(*, fails, **settings):
        starts.append(settings)
        if len(starts) <= fails:
            raise slow

    monkeypatch.setattr(session.ray, "init", partial(init, fails=session.STARTS - 1))
    session._init("local", num_cpus=2)
    assert [one["num_cpus"] for one in starts] == [2] * session.STARTS
    monkeypatch.setattr(session.ray, "init", partial(init, fails=1000))
    with pytest.raises(ResourcesError, match="the machine is too busy"):
        session._init("local")
    slow = ValueError("another")
    starts.clear()
    with pytest.raises(ValueError, match="another"):
        session._init("local")
    assert len(starts) == 1
