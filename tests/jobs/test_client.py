"""The queue from Python, as its docstring shows it."""

import shlex

import pytest
from filelock import FileLock

from sp500.errors import LimitExceeded
from sp500.jobs import client
from sp500.jobs.manifests.pods import literal
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


@pytest.mark.parametrize("on", ["local", "ray"])
def test_rerun_of_a_named_experiment_continues_its_run(on, tmp_path, monkeypatch):
    monkeypatch.setattr(client.Queue, "manage", lambda queue: None)
    target, queue, settings = find(on), client.open_queue(tmp_path), {"train": {"epochs": 2}}
    options = target.options(address="http://127.0.0.1:8265") if on == "ray" else target.options()
    spec = JobSpec(argv=("sp500", "train", "--name", "a b"), settings=settings, working_dir="https://a/b.zip")
    (job,) = client.prepare(tmp_path, [spec], target, options, client.Estimator())
    queue.add([job])
    again = client.rerun(queue, client.rerun(queue, job.id).id)
    request = queue.ledger.document(again.id, "request")
    words = request["argv"] if on == "local" else shlex.split(request["entrypoint"])
    at = words.index("--resume")
    assert (words[at - 2 : at], words[at + 1], words.count("--resume")) == (["--name", "a b"], "--config", 1)
    assert queue.ledger.document(again.id, "spec")["argv"][-1] == "--resume"


def test_rerun_on_kubernetes_finds_a_command_whose_dollars_are_doubled():
    argv = ["sp500", "train", "--name", "a$b"]
    target, plain = find("kuberay"), {"entrypoint": shlex.join(argv)}
    for request in (plain, {"entrypoint": literal(plain["entrypoint"])}):
        assert target.resume(request, argv)["entrypoint"] == f"{request['entrypoint']} --resume"


def test_reason_of_a_failed_job_ends_with_its_last_message(queue):
    (queued,) = client.submit(queue, [JobSpec(argv=("python", "-c", "raise SystemExit('ConfigError: no such key')"))])
    (job,) = client.wait(queue, [queued.job.id], 120)
    assert job.reason == "ended with exit code 1: ConfigError: no such key"


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
