import pytest

from sp500.errors import ConfigError
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
