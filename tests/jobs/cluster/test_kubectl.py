import pytest

from sp500.errors import ConfigError, ResourcesError, Unreachable
from sp500.jobs.cluster.kubectl import Kubectl


def test_namespace_and_context_stand_before_the_command():
    argv = Kubectl("lab", "kind-sp500").argv("exec", "pod", "--", "ls")
    assert argv == ["kubectl", "--context=kind-sp500", "--namespace=lab", "exec", "pod", "--", "ls"]
    assert Kubectl("lab").argv("version") == ["kubectl", "--namespace=lab", "version"]


def test_missing_kubectl_is_told_whatever_was_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    kubectl = Kubectl("lab")
    with pytest.raises(ConfigError, match="kubectl is not on PATH"):
        kubectl.text("version")
    with pytest.raises(ConfigError, match="kubectl is not on PATH"), kubectl.reading("exec"):
        pass


def test_api_server_that_does_not_answer_is_told_apart_from_one_that_refuses(tmp_path, monkeypatch):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$3" >&2\nexit 1\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Unreachable):
        Kubectl("lab").text("get", "The connection to the server 10.0.0.1:6443 was refused - did you specify ...?")
    with pytest.raises(ResourcesError) as refusal:
        Kubectl("lab").text("get", "Error from server (Forbidden): pods is forbidden")
    assert not isinstance(refusal.value, Unreachable)


def test_log_of_kubectl_is_left_out_of_its_message(tmp_path, monkeypatch):
    log = 'E1122 12:00:00.000000 7 memcache.go:265] "Unhandled Error" err="dial tcp: connection refused"'
    kubectl = tmp_path / "kubectl"
    said = "The connection to the server 10.0.0.1:6443 was refused"
    kubectl.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{log}\n{log}\n{said}\nEND\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Unreachable) as silent:
        Kubectl("lab").reach()
    assert str(silent.value).startswith(f"kubectl get: {said}. Check the context")
