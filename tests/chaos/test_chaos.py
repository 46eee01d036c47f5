"""The queue under fire, in small; `scripts/chaos-jobs` does it with a thousand jobs."""

from chaos import PRICE, measured

JOBS, KILLS = 40, 3


def test_no_job_is_lost_or_run_twice_while_managers_are_killed(tmp_path):
    found = measured(JOBS, KILLS, 1, tmp_path)
    assert (found["lost"], found["run_twice"], found["orphans"]) == (0, 0, 0)
    assert found["kills"] >= 1  # so few jobs may be done before the last of them
    assert 1 <= found["one_gave_way"] <= found["pairs_of_managers"]  # a kill may come before it could
    assert found["overshot"] <= PRICE
    assert (found["stopped"], found["stop_seconds"] < 15) == (5, True)
