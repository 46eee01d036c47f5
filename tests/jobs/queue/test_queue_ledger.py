"""The queue's file: changes that happen once, whoever makes them."""

import os
import resource
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from queue_fakes import new_job

from sp500.errors import ConfigError, ResourcesError
from sp500.jobs.queue.ledger import Ledger
from sp500.jobs.queue.queue import Queue
from sp500.jobs.resources import Resources
from sp500.jobs.state import JobState


def new(id, **more):
    base = {"name": "train", "spec": {"argv": ["true"]}, "request": {"argv": ["true"]}, "seconds": 60.0}
    return new_job(id, **base | {"demand": Resources(1, 0, 0), "hourly": 2.0, "retries": 1} | more)


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "state" / "queue.db")
    made.create()
    return made


def add(ledger, *jobs, at=100.0):
    with ledger.writing() as entry:
        entry.add(jobs, at)


def in_a_child(act):
    """Act in a process of its own, which has to end well."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_job_comes_back_as_it_was_queued(ledger):
    add(ledger, new("a", demand=Resources(2.0, 1.0, 2.0**33)), new("b", priority=3))
    a, b = ledger.jobs()
    assert (a.id, a.demand, a.seconds, a.retries, a.state) == ("a", Resources(2, 1, 2**33), 60.0, 1, JobState.QUEUED)
    assert (b.id, b.priority, b.number > a.number, b.handle) == ("b", 3, True, "b")
    assert ledger.document("a", "request") == {"argv": ["true"]}


def test_all_of_a_batch_is_queued_or_none_of_it(ledger):
    add(ledger, new("a"))
    with pytest.raises(ConfigError, match="duplicate job id a"):
        add(ledger, new("b"), new("a"))
    assert [job.id for job in ledger.jobs()] == ["a"]


def test_change_finds_that_another_was_faster(ledger):
    add(ledger, new("a"))
    (seen,) = ledger.jobs()

    def claim(number):
        with ledger.writing() as entry:
            return entry.change(seen, 101.0, state="PENDING", reason=f"claimed by {number}", starts=1)

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(claim, range(8)))
    assert sorted(won) == [False] * 7 + [True]
    assert ledger.jobs()[0].reason == f"claimed by {won.index(True)}"


def test_history_has_no_line_for_each_number_of_pods_that_wait_for_the_same(ledger):
    add(ledger, new("a"))
    waits = "its Ray cluster starts; {}: Unschedulable: 0/{} nodes are available: {} Insufficient {}"
    pods = [
        ("worker", 2, 2, "cpu"),
        ("2 workers", 2, 2, "cpu"),
        ("16 workers", 3, 3, "cpu"),
        ("16 workers", 3, 3, "memory"),
    ]
    reasons = [waits.format(*each) for each in pods]
    for reason in reasons:
        with ledger.writing() as entry:
            entry.change(entry.jobs()[0], 101.0, state="PENDING", reason=reason)
    assert [told for _, state, told in ledger.events("a") if state == "PENDING"] == [reasons[0], reasons[3]]
    assert ledger.jobs()[0].reason == reasons[3]


def test_history_has_each_change_once_and_no_reasons_to_wait(ledger):
    add(ledger, new("a"))
    steps = [("QUEUED", "waits for 1 CPU"), ("PENDING", "its turn"), ("PENDING", "its turn"), ("RUNNING", "runs")]
    for at, (state, reason) in enumerate(steps, 101):
        with ledger.writing() as entry:
            entry.change(entry.jobs()[0], at, state=state, reason=reason)
    assert ledger.events("a") == [
        (100.0, JobState.QUEUED, "just submitted"),
        (102.0, JobState.PENDING, "its turn"),
        (104.0, JobState.RUNNING, "runs"),
    ]


def test_transaction_that_breaks_leaves_nothing(ledger):
    def broken():
        with ledger.writing() as entry:
            entry.add([new("a")], 100.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert ledger.jobs() == []


def test_spent_money_outlives_the_job(ledger):
    add(ledger, new("a"))
    with ledger.writing() as entry:
        entry.change(entry.jobs()[0], 101.0, state="PENDING", starts=1, claimed=101.0, submitted=True)
    with ledger.writing() as entry:
        entry.release(entry.jobs()[0], 161.0)
    assert ledger.jobs()[0].cost(161.0) == pytest.approx(2 * 2.0 * 60 / 3600)  # that start, and the present one
    with ledger.writing() as entry:
        entry.remove("a")
    (use,) = ledger.uses(0.0)
    assert (use.project, use.begin, use.finish, use.hourly) == ("p", 101.0, 161.0, 2.0)
    assert ledger.jobs() == ledger.events("a") == []


def test_unfinished_jobs_are_those_that_have_not_ended(ledger):
    add(ledger, *(new(str(state).lower()) for state in JobState))
    for job in ledger.jobs():
        with ledger.writing() as entry:
            entry.change(job, 101.0, state=job.id.upper())
    assert {job.id for job in ledger.jobs(unfinished=True)} == {"queued", "pending", "running"}


def test_file_of_a_later_version_is_refused(ledger):
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="newer sp500"):
        ledger.create()


def test_damaged_page_behind_the_header_is_told_as_damage(ledger):
    add(ledger, *(new(f"job-{number}") for number in range(50)))
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(ledger.path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    ledger.path.write_bytes(data)
    for use in (ledger.jobs, lambda: add(ledger, new("b"))):
        with pytest.raises(ConfigError, match="Move it away"):
            use()


def test_queue_that_another_process_holds_is_not_damaged(ledger, monkeypatch):
    monkeypatch.setattr("sp500.jobs.queue.ledger.SECONDS_LOCKED", 0.05)
    with sqlite3.connect(ledger.path, isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(ResourcesError, match="another process") as raised:
            add(ledger, new("a"))
    connection.close()
    assert "ove it away" not in str(raised.value)
    add(ledger, new("a"))


def test_queue_on_a_full_disk_names_path_and_free_space_loses_nothing_and_can_be_read(ledger):
    add(ledger, new("a"))

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # no byte can be added to a file
        with pytest.raises(ResourcesError, match=r"queue\.db cannot be written .* MiB free") as raised:
            add(ledger, *(new(f"more-{number}") for number in range(200)))
        assert "ove it away" not in str(raised.value)

    def read():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        queue = Queue(ledger.path.parent, lambda target: None, ["false"])
        assert [job.id for job in queue.ledger.jobs()] == ["a"]
        assert queue.ledger.document("a", "spec") == {"argv": ["true"]}
        assert len(queue.ledger.events("a")) == 1
        assert queue.ledger.busy()
        with pytest.raises(ResourcesError):
            add(queue.ledger, new("b"))

    for act in (read, full):
        in_a_child(act)
    assert [job.id for job in ledger.jobs()] == ["a"]


def test_queue_without_currencies_is_taken_over(ledger):
    add(ledger, new("a"))
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("ALTER TABLE jobs DROP COLUMN currency")
        connection.execute("PRAGMA user_version = 2")
    ledger.create()
    add(ledger, new("b", currency="EUR"))
    assert [(job.id, job.currency) for job in ledger.jobs()] == [("a", "USD"), ("b", "EUR")]


def test_file_that_cannot_be_opened_names_users_and_is_not_damaged(tmp_path):
    (tmp_path / "queue.db").mkdir()
    with pytest.raises(ConfigError, match=r"by user \d+") as raised:
        Ledger(tmp_path / "queue.db").create()
    assert "ove it away" not in str(raised.value)


def test_folder_that_others_may_write_to_is_refused_and_one_they_may_read_is_closed(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(ConfigError, match="chmod 700"):
        Ledger(folder / "queue.db").create()
    folder.chmod(0o755)
    Ledger(folder / "queue.db").create()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(tmp_path):
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(ConfigError, match="user 65534"):
        Ledger(tmp_path / "queue.db").create()


def test_stamp_changes_with_each_commit_of_any_process_and_with_no_reader(ledger):
    stamps = [ledger.stamp()]
    for number in range(5):
        in_a_child(lambda number=number: add(Ledger(ledger.path), new(f"job-{number}")))
        stamps.append(ledger.stamp())
        ledger.jobs()
        with ledger.writing():
            pass
        assert ledger.stamp() == stamps[-1]
    assert len(set(stamps)) == 6
