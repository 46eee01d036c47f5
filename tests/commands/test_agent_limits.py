"""What holds an agent back: its budget where jobs cost money, and limits of this machine where they do not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from filelock import FileLock
from queue_fakes import FakeExecutor

from sp500.agent.limits import Limits
from sp500.agent.requests import SubmitJob
from sp500.commands.agent import agent_tools
from sp500.errors import ConfigError, LimitExceeded
from sp500.jobs import client
from sp500.jobs.queue.manager import Manager
from sp500.jobs.resources import Resources
from sp500.jobs.state import JobState, Status

MIB = 2**20
RATES = {
    "currency": "USD", "date": "2026-01-02", "source": "made up",
    "types": {"home": {"cpu_hour": 10, "gib_hour": 0, "node": {"cpus": 2, "gib": 8}}},
    "rule": {"alone": "home", "cluster": "home", "gpu": "home"},
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Makes a desk whose jobs wait for a manager of the test; scripts are not asked about their flags."""
    monkeypatch.setattr(agent_tools, "_check_flags", lambda script: None)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)

    def make(rates=None, settings="capacity: {local: {cpus: 1000, memory: 1000GiB}}\n", **limits):
        (state / "queue.yaml").write_text(settings)
        (tmp_path / "rates.yaml").write_text(yaml.safe_dump(rates or RATES))
        flags = {"state_dir": state, "rates": tmp_path / "rates.yaml"}
        (tmp_path / "runs").mkdir(exist_ok=True)
        return agent_tools.AgentContext(
            client.open_queue(state), tmp_path / "runs", ("local",), "agent", flags, Limits(**limits)
        )

    with FileLock(state / "manager.lock"):  # whoever submits sees a manager
        yield make


def submit(desk, **asked):
    return agent_tools.submit_job(desk, SubmitJob(experiment="train", **asked))[1]


def test_hundred_jobs_that_claim_to_take_a_second_spend_no_more_than_the_budget(place):
    settings = "capacity: {local: {cpus: 1000, memory: 1000GiB}}\nbudgets: {agent: 12.5}\n"
    desk = place(settings=settings, jobs=100)
    for _ in range(100):
        submit(desk, expected=1, deadline=3600, memory="256MiB")
    ledger, now = desk.queue.ledger, [1_000_000.0 * 86400]
    executor = FakeExecutor(Status(JobState.RUNNING, "runs", started=0.0))
    manager = Manager(
        ledger, desk.queue.folder / "logs", lambda _: executor, lambda: client.read_settings(desk.queue.folder),
        Resources(1000, 0, 2**50), clock=lambda: now[0],
    )  # fmt: skip
    for _ in range(13):  # an hour, a turn every five minutes
        with ThreadPoolExecutor(1) as pool:
            manager.turn(pool)
        now[0] += 300
    spent = sum(job.cost(1_000_000.0 * 86400 + 3600) for job in ledger.jobs())
    assert [job.starts for job in ledger.jobs()] == [1] + [0] * 99
    assert spent == pytest.approx(10.0)


def test_job_that_costs_money_needs_a_deadline_and_is_priced_by_it(place):
    desk = place()
    with pytest.raises(ConfigError, match=r"10\.00 USD per hour.* deadline"):
        submit(desk, expected=1)
    assert submit(desk, expected=1, deadline=1800)["plan"]["cost"] == [pytest.approx(10 / 3600), 5.0]


def test_estimate_of_an_agent_never_shortens_what_earlier_jobs_took(place):
    desk = place(rates=RATES | {"types": {"home": {**RATES["types"]["home"], "cpu_hour": 0}}})
    first = submit(desk)["id"]
    with desk.queue.ledger.writing() as entry:
        entry.change(entry.jobs([first])[0], 1.0, state="SUCCEEDED", started=1000.0, ended=1500.0)
    assert submit(desk, expected=1)["plan"]["seconds"] == [1, 500]
    assert submit(desk, expected=900)["plan"]["seconds"] == [500, 900]


def test_unfinished_jobs_are_limited_and_an_ended_one_makes_room(place):
    desk = place(RATES, jobs=2)
    ids = [submit(desk, deadline=60)["id"] for _ in range(2)]
    with pytest.raises(LimitExceeded, match="max-jobs 2"):
        submit(desk, deadline=60)
    with desk.queue.ledger.writing() as entry:
        entry.change(entry.jobs(ids[:1])[0], 1.0, state="FAILED", ended=2.0)
    submit(desk, deadline=60)


def test_job_without_memory_gets_the_limit_and_one_with_more_is_refused(place):
    desk = place(memory_bytes=4096 * MIB)
    submit(desk, workers=2, deadline=60)
    (job,) = desk.queue.ledger.jobs()
    assert desk.queue.ledger.document(job.id, "request")["memory_bytes"] == 4096 * MIB
    with pytest.raises(ConfigError, match="4096 MiB"):
        submit(desk, workers=2, memory="3GiB", deadline=60)
    assert Limits().worker_memory(SubmitJob(experiment="train"), 1, Resources(2, 0, 2**34)) == "8192MiB"


def test_folder_of_runs_that_is_too_large_takes_no_more_jobs(place, tmp_path):
    desk = place(disk_bytes=MIB)
    (tmp_path / "runs" / "a").mkdir()
    (tmp_path / "runs" / "a" / "checkpoint").write_bytes(b"x" * (MIB + 1))
    with pytest.raises(LimitExceeded, match="1 MiB"):
        submit(desk, deadline=60)
