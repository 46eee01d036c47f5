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


DEV, PROD = (None, [("dev", "first")]), ("dev", [("dev", "second"), ("prod", "live"), ("bare", None)])


@pytest.mark.parametrize(
    ("files", "name", "selected"),
    [
        ([PROD], None, ("dev", "second")),
        ([PROD], "bare", ("bare", "sp500")),
        ([DEV], "dev", ("dev", "first")),  # also without a current one
        ([DEV, PROD], None, ("dev", "first")),
        ([DEV, PROD], "prod", ("prod", "live")),
    ],
)
def test_context_is_the_one_asked_for_or_the_current_one_of_the_first_file_that_tells(
    environment, files, name, selected
):
    assert contexts.select_context(environment(*files), name) == selected


def test_context_that_no_file_has_is_refused_with_those_that_are(environment):
    with pytest.raises(ConfigError, match=r"--context prd: no kubeconfig has it; there are: dev, prod"):
        contexts.select_context(environment(("dev", [("dev", None), ("prod", None)])), "prd")


@pytest.mark.parametrize("text", [None, "- a list"])
def test_what_is_no_kubeconfig_has_no_context_and_is_left_to_its_client(tmp_path, text):
    if text:
        (tmp_path / "config").write_text(text)
    assert contexts.select_context({"KUBECONFIG": str(tmp_path / "config")}) == (None, "sp500")


def test_relative_files_stay_where_they_are_whatever_the_folder_is_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert contexts.files({"KUBECONFIG": "a:b"}) == [tmp_path / "a", tmp_path / "b"]
