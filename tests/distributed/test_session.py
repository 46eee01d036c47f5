"""Ray on this machine is out of the reach of its other users: token, session folder and ports."""

import os
import signal
import socket
import statistics
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import other_users
import psutil
import pytest
import ray
from ray._private import worker
from ray._private.runtime_env import uv_runtime_env_hook

from sp500.distributed import serve, session
from sp500.errors import ConfigError, ResourcesError
from sp500.machine.memory import run_in_subprocess
from sp500.machine.ray_token import ensure_ray_token, ray_token


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


def look_at_a_cluster(home: Path) -> dict[str, object]:
    other_users.as_a_user(home)
    os.chdir(home)
    Path("statistics.py").write_text("raise SystemExit('mine')")
    Path("my env").symlink_to(sys.prefix)
    sys.executable = str(home / "my env" / "bin" / "python")
    with session.connect():
        folder, found = other_users.session_folder(), other_users.look()
        of_worker = ray.get(ray.remote(lambda: (sys.executable, __import__("statistics").__file__)).remote())
        words = [word for process in psutil.Process().children(recursive=True) for word in process.cmdline()]
        services = {Path(word).name for word in words} & {"gcs_server", "dashboard.py", "monitor.py", "log_monitor.py"}
    return found | {"left": folder.exists(), "of worker": of_worker, "services": services}


def test_cluster_of_this_machine_is_closed_to_its_other_users(tmp_path):
    """That of simulated nodes is in `test_simulated_nodes.py`."""
    found = run_in_subprocess(look_at_a_cluster, tmp_path / "home")
    other_users.check(found)
    assert not found["left"]
    assert found["services"] == {"gcs_server"}
    # A file of that name in the current folder hides nothing.
    assert found["of worker"] == (str(tmp_path / "home" / "my env" / "bin" / "python"), statistics.__file__)


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
    with pytest.raises(ResourcesError, match=r"auth_token: .*cannot be kept"):
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
    with pytest.raises(ResourcesError, match="too busy"):
        session._init("local")
    slow = ValueError("another")
    starts.clear()
    with pytest.raises(ValueError, match="another"):
        session._init("local")
    assert len(starts) == 1


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "https://ray.example.org", "head", "head:port"])
def test_address_that_no_script_can_connect_to_is_refused_at_once(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)  # where other tests share a cluster
    with pytest.raises(ConfigError, match="unset RAY_ADDRESS"), session.connect():
        pass


def test_server_that_is_none_of_ray_is_given_up_in_time_past_the_proxy_of_the_environment(monkeypatch, ray_cluster):
    session._wait_for_answer(ray.get_runtime_context().gcs_address)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setattr(session, "ANSWER_SECONDS", 1)
    session._wait_for_answer(ray.get_runtime_context().gcs_address)
    answers_nothing = pytest.raises(ResourcesError, match="no Ray cluster")
    with socket.create_server(("127.0.0.1", 0)) as silent, answers_nothing:
        session._join(f"127.0.0.1:{silent.getsockname()[1]}").__enter__()


def test_uv_run_changes_nothing_about_the_workers(monkeypatch):
    monkeypatch.setattr(uv_runtime_env_hook, "_get_uv_run_cmdline", lambda: ["uv", "run", "python", "train.py"])
    assert "working_dir" in uv_runtime_env_hook.hook({})
    session.set_defaults({})
    assert worker._maybe_modify_runtime_env({}, False) == {}


def test_gate_asks_pods_past_the_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert serve._answers(f"http://127.0.0.1:{server.server_port}/healthz")
        server.shutdown()


def test_handlers_that_ray_sets_below_pythons_are_put_back_in_whatever_thread_it_starts():
    before = session._read_handler(signal.SIGTERM)

    def start() -> None:
        with session.keep_signal_handlers():
            session._set_handler(signal.SIGTERM, None)

    start()
    assert session._read_handler(signal.SIGTERM) == before
    thread = Thread(target=start)
    thread.start()
    thread.join()
    assert session._read_handler(signal.SIGTERM) == before
