"""Contexts of kubeconfigs, against what kubectl does with them (kubernetes.io, "Merging kubeconfig files")."""

import pytest
import yaml

from sp500.errors import ConfigError
from sp500.jobs.kuberay import contexts


@pytest.fixture
def environment(tmp_path):
    """Writes kubeconfigs and names them in KUBECONFIG."""

    def write(*files):
        paths = []
        for number, (current, known) in enumerate(files):
            path = tmp_path / f"config-{number}"
            listed = [{"name": name, "context": {"namespace": space} if space else {}} for name, space in known]
            path.write_text(yaml.safe_dump({"current-context": current, "contexts": listed}))
            paths.append(str(path))
        return {"KUBECONFIG": ":".join(paths)}

    return write


def test_current_context_is_kept_by_name_with_its_namespace(environment):
    assert contexts.select_context(environment(("dev", [("prod", "live"), ("dev", "team")]))) == ("dev", "team")


def test_context_asked_for_is_found_also_without_a_current_one(environment):
    assert contexts.select_context(environment((None, [("prod", "live")])), "prod") == ("prod", "live")


def test_of_several_files_the_first_that_tells_counts(environment):
    files = environment((None, [("dev", "first")]), ("dev", [("dev", "second"), ("prod", "live")]))
    assert contexts.select_context(files) == ("dev", "first")
    assert contexts.select_context(files, "prod") == ("prod", "live")


def test_context_that_no_file_has_is_refused_with_those_that_are(environment):
    with pytest.raises(ConfigError, match=r"--context prd: no kubeconfig has it; there are: dev, prod"):
        contexts.select_context(environment(("dev", [("dev", None), ("prod", None)])), "prd")


def test_without_a_kubeconfig_there_is_no_context(tmp_path):
    assert contexts.select_context({"KUBECONFIG": str(tmp_path / "none")}) == (None, "sp500")


def test_what_is_no_kubeconfig_is_left_to_its_client(tmp_path):
    (tmp_path / "config").write_text("- a list")
    assert contexts.select_context({"KUBECONFIG": str(tmp_path / "config")}) == (None, "sp500")


def test_relative_files_stay_where_they_are_whatever_the_folder_is_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert contexts.files({"KUBECONFIG": "a:b"}) == [tmp_path / "a", tmp_path / "b"]
