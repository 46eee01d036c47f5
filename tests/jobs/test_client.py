"""The queue from Python, as its docstring shows it."""

import pytest
from filelock import FileLock

from sp500.errors import LimitExceeded
from sp500.jobs import client
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState
from sp500.jobs.target import find


@pytest.fixture
def queue(tmp_path):
    """A queue of its own, whose manager has ended when the test is done."""
    queue = client.open_queue(tmp_path)
    yield queue
    client.stop(queue, [job.id for job in queue.ledger.jobs(unfinished=True)])
    with FileLock(tmp_path / "manager.lock", timeout=120):
        pass


def test_job_is_submitted_waited_for_read_and_run_again(queue):
    (queued,) = client.submit(queue, [JobSpec(argv=("python", "-c", "print(6 * 7)"))])
    assert queued.shortfall == ""
    (job,) = client.wait(queue, [queued.job.id], 120)
    assert (job.state, list(client.logs(queue, job.id, tail=5))) == (JobState.SUCCEEDED, ["42"])
    assert client.status(queue, job.id)[0].state == JobState.SUCCEEDED
    (again,) = client.wait(queue, [client.rerun(queue, job.id).id], 120)
    assert (again.state, again.id != job.id, client.last_lines(queue, again, 1)) == (JobState.SUCCEEDED, True, ["42"])


def test_wait_gives_up_and_stop_ends(queue):
    (queued,) = client.submit(queue, [JobSpec(argv=("sleep", "600"))])
    with pytest.raises(LimitExceeded):
        client.wait(queue, [queued.job.id], 0.1)
    (job,) = client.stop(queue, [queued.job.id], 120)
    assert job.state == JobState.STOPPED


def test_nothing_is_known_of_a_job_but_what_it_says():
    estimate, here = client.Estimator(), find("local")
    assert estimate.seconds(JobSpec(argv=("a",)), here) == (None, None)
    assert estimate.seconds(JobSpec(argv=("a",), deadline=60), here) == (None, 60)
    assert estimate.seconds(JobSpec(argv=("a",), deadline=60, expected=90), here) == (60, 60)
    assert estimate.hourly(JobSpec(argv=("a",)), here, {}) == 0.0
