"""Files of a search that others may change: the copy for Optuna's readers, which never ends it, and its space."""

from contextlib import nullcontext

import pytest

from sp500.errors import ConfigError
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.studies import search_steps
from sp500.studies.settings import SearchSettings
from sp500.tuning.space import choices


def test_file_that_cannot_be_written_is_a_warning_of_one_line(tmp_path, caplog):
    (tmp_path / "optuna.db").mkdir()
    search_steps.log(Run(tmp_path), choices("two", {"model.hidden": (8, 16)}), [])
    (warning,) = caplog.records
    assert (warning.levelname, len(warning.getMessage().splitlines())) == ("WARNING", 1)


@pytest.mark.parametrize(
    ("space", "mode", "same"),
    [
        ("model.hidden: [8, 16]\ntrain.lr: [0.001, 0.01]", "packed", True),
        ("model.hidden: [8, 16]\ntrain.lr: [0.001, 0.01]", "all", True),
        ("model.hidden: [8, 16, 32]\ntrain.lr: [0.001, 0.01]", "packed", False),
        ("model.hidden: [8, 16, 32]\ntrain.lr: [0.001, 0.01]", "all", False),
        ("model.hidden: [8, 64]\ntrain.lr: [0.001, 0.01]", "packed", False),
    ],
)
def test_ended_search_is_not_resumed_with_another_space_of_the_same_name(tmp_path, space, mode, same):
    (tmp_path / "space.yaml").write_text(space)
    best = {"overrides": {"model.hidden": 16, "train.lr": 0.001}}
    record = RunRecord.model_construct(name="w", search={"configs": 4, "best": best})
    settings = SearchSettings(space=str(tmp_path / "space.yaml"), mode=mode)
    with nullcontext() if same else pytest.raises(ConfigError, match="choose another --name"):
        settings.check_ended(record)
    (tmp_path / "space.yaml").unlink()
    settings.check_ended(record)
