"""Kills in small; `scripts/chaos` does many."""

import object_store
import pytest
from kill_archive import measured as kill_archive
from kill_managers import PRICE
from kill_managers import measured as kill_managers
from kill_searches import measured as kill_searches
from kill_training import EVERY
from kill_training import measured as kill_training
from kill_training import measured_steps as kill_steps

JOBS, KILLS = 40, 3


def test_no_job_is_lost_or_run_twice_while_managers_are_killed(tmp_path):
    found = kill_managers(JOBS, KILLS, 1, tmp_path)
    assert (found["lost"], found["run_twice"], found["orphans"]) == (0, 0, 0)
    assert found["kills"] >= 1  # so few jobs may be done before the last of them
    assert 1 <= found["one_gave_way"] <= found["pairs_of_managers"]  # a kill may come before it could
    assert found["overshot"] <= PRICE
    assert (found["stopped"], found["stop_seconds"] < 15) == (5, True)


@pytest.mark.parametrize(("mode", "kills"), [("sequential", 2), ("packed", 2), ("ray", 1)])
def test_killed_search_runs_nothing_twice_and_loses_nothing(tmp_path, mode, kills):
    found = kill_searches(mode, kills, 36, 7, tmp_path)
    assert 0 < found["before_the_last_start"] < 36
    assert found["resumed"] == found["before_the_last_start"]
    assert (found["lost"], found["run_twice"], found["failed"], found["in_optuna"]) == (0, 0, 0, 36)
    assert found["kept"]
    assert found["same_best"]


def test_run_killed_inside_an_epoch_ends_in_the_same_bits(tmp_path):
    found = kill_steps(2, 5, tmp_path)
    assert found["other_weights"] == 0
    assert 0 <= found["most_steps_lost"] <= EVERY


def test_killed_run_resumes_to_the_same_metrics(tmp_path):
    assert kill_training(1, 3, tmp_path)["other_metrics"] == 0


@pytest.mark.skipif(not object_store.SERVER.exists(), reason="moto is not installed (scripts/moto does it)")
def test_killed_copy_leaves_no_partial_version_and_resumes_to_the_same_bits(tmp_path):
    found = kill_archive(2, 3, tmp_path)
    assert (found["partial_versions"], found["other_files"], found["other_weights"]) == (0, 0, 0)
    assert found["versions_seen"]
    assert found["resumed"]
