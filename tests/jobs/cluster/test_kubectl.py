import pytest

from sp500.errors import ConfigError, ResourcesError, Unreachable
from sp500.jobs.cluster.kubectl import Kubectl


def test_namespace_and_context_stand_before_the_command():
    argv = Kubectl("lab", "kind-sp500").argv("exec", "pod", "--", "ls")
    assert argv == ["kubectl", "--context=kind-sp500", "--namespace=lab", "exec", "pod", "--", "ls"]
    assert Kubectl("lab").argv("version") == ["kubectl", "--namespace=lab", "version"]


def test_missing_kubectl_is_told_whatever_was_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (lambda: Kubectl("lab").text("version"), lambda: Kubectl("lab").reading("exec").__enter__()):
        with pytest.raises(ConfigError, match="PATH"):
            ask()


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Puts a kubectl on PATH that prints to stderr and fails."""

    def put(text):
        program = tmp_path / "kubectl"
        program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return Kubectl("lab")

    return put


SILENT = "The connection to the server 10.0.0.1:6443 was refused"
LOG = 'E1122 12:00:00.000000 7 memcache.go:265] "Unhandled Error" err="dial tcp: connection refused"\n'


def test_api_server_that_does_not_answer_is_told_apart_from_one_that_refuses_and_without_its_log(kubectl):
    with pytest.raises(ResourcesError) as refusal:
        kubectl("Error from server (Forbidden): pods is forbidden").text("get")
    assert not isinstance(refusal.value, Unreachable)
    with pytest.raises(Unreachable):
        kubectl(f"{SILENT} - did you specify ...?").text("get")
    with pytest.raises(Unreachable) as silent:
        kubectl(2 * LOG + SILENT).reach()
    assert str(silent.value).startswith(f"kubectl get: {SILENT}. ")
