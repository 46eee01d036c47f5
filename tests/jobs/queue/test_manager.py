"""The manager: what it hands over, once, and what it makes of those who do not answer."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

import pytest
from queue_fakes import FakeExecutor, new_job, until

from sp500.errors import Refused, Unreachable
from sp500.jobs.executor import Line
from sp500.jobs.local import executor as local
from sp500.jobs.local.executor import LocalExecutor
from sp500.jobs.local.job_folder import JobFolder
from sp500.jobs.queue import log_archive, schedule
from sp500.jobs.queue.ledger import Ledger
from sp500.jobs.queue.manager import SECONDS_BETWEEN_PLANS, Manager
from sp500.jobs.queue.queue import Queue
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.resources import Resources, of_spec
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState, Role, Status

MACHINE = Resources(4, 0, 2**34)


class Site:
    """A ledger, a cluster, this machine, and managers of them."""

    def __init__(self, folder):
        self.folder, self.ledger, self.cluster = folder, Ledger(folder / "queue.db"), FakeExecutor()
        self.settings, self.machine, self.time, self.offset = QueueSettings(), MACHINE, None, 0.0
        self.ledger.create()

    def manager(self, ticks=time.monotonic):
        def executor(target):
            return LocalExecutor(self.folder / "jobs") if target["on"] == "local" else self.cluster

        return Manager(
            self.ledger, self.folder / "logs", executor, lambda: self.settings, self.machine,
            first_wait=0.1, clock=lambda: self.offset + time.time() if self.time is None else self.time,
            ticks=ticks,
        )  # fmt: skip

    def add(self, id, *argv, on="kuberay", **more):
        spec = JobSpec(argv=argv or ("true",), name=id, workers=1, **more.pop("spec", {}))
        request = local.request(spec, cwd=self.folder, environment={"PATH": "/usr/bin:/bin"}, python=sys.executable)
        base = {"target": {"on": on}, "request": request, "demand": of_spec(spec)}
        with self.ledger.writing() as entry:
            entry.add([new_job(id, **base | more)], time.time())

    def job(self, id):
        return self.ledger.jobs([id])[0]

    def turn(self, count=1):
        """So many turns of a manager that is there for these alone."""
        for _ in range(count):
            with ThreadPoolExecutor(4) as pool:
                self.manager().turn(pool)

    @contextmanager
    def managed(self, managers=1):
        stop = Event()
        with ThreadPoolExecutor(managers) as threads:
            running = [threads.submit(self.manager().run, 1e9, stop) for _ in range(managers)]
            try:
                yield
            finally:
                stop.set()
        for one in running:
            one.result()

    def until_ended(self, *ids):
        until(lambda: all(self.job(id).state.finished for id in ids))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_two_managers_at_once_start_each_job_once(site):
    ids = [f"job-{number}" for number in range(30)]
    for id in ids:
        site.add(id, "/bin/sh", "-c", f"echo {id} >> {site.folder}/ran", on="local")
    with site.managed(managers=2):
        site.until_ended(*ids)
    assert sorted((site.folder / "ran").read_text().split()) == sorted(ids)
    assert {job.state for job in site.ledger.jobs()} == {JobState.SUCCEEDED}


def test_start_that_was_claimed_by_a_manager_now_dead_is_handed_over_by_the_next(site):
    site.add("a")
    with site.ledger.writing() as entry:
        entry.change(entry.jobs()[0], 1.0, state="PENDING", reason="its turn has come", starts=1)
    site.turn()
    assert site.cluster.submitted == ["a"]
    assert (site.job("a").state, site.job("a").submitted) == (JobState.RUNNING, True)


def test_job_that_fails_is_started_again_until_it_succeeds(site):
    script = f"echo x >> {site.folder}/ran; [ $(grep -c x {site.folder}/ran) = 3 ]"
    site.add("a", "/bin/sh", "-c", script, on="local", retries=5)
    with site.managed():
        site.until_ended("a")
    job = site.job("a")
    assert (job.state, job.starts, job.failures) == (JobState.SUCCEEDED, 3, 2)
    told = [reason.split(";")[0] for _, state, reason in site.ledger.events("a") if state == JobState.QUEUED]
    assert [words.partition(" failed")[0] for words in told[1:]] == ["start 1 of 6", "start 2 of 6"]


def test_command_line_that_is_wrong_is_not_tried_again(site):
    site.add("a", "/bin/sh", "-c", "exit 2", on="local", retries=5)
    with site.managed():
        site.until_ended("a")
    assert (site.job("a").state, site.job("a").starts, site.job("a").exit_code) == (JobState.FAILED, 1, 2)


def test_job_that_a_cluster_refuses_has_failed_with_its_words(site):
    site.cluster.at_submit = Refused("rayjobs.ray.io is forbidden")
    site.add("a")
    site.turn()
    assert (site.job("a").state, site.job("a").reason) == (JobState.FAILED, "rayjobs.ray.io is forbidden")


def test_cluster_that_does_not_answer_changes_no_state_and_is_asked_again(site):
    site.cluster.at_submit = Unreachable("connection refused")
    site.add("a")
    site.turn()
    assert (site.job("a").state, site.job("a").reason) == (JobState.PENDING, "status unavailable: connection refused")
    site.cluster.at_submit = None
    site.turn()
    assert site.job("a").state == JobState.RUNNING
    site.cluster.answer = Refused("the token is wrong")
    site.turn()
    assert (site.job("a").state, "the token is wrong" in site.job("a").reason) == (JobState.RUNNING, True)
    assert site.cluster.submitted == ["a"]


def test_fault_in_one_jobs_way_is_told_and_stops_neither_the_manager_nor_the_others(site, capfd):
    site.cluster.answer = KeyError("status")
    site.add("far")
    site.add("near", on="local")
    with site.managed():
        site.until_ended("near")
    assert site.job("far").state == JobState.PENDING
    assert "internal error (KeyError: 'status')" in site.job("far").reason
    assert "KeyError" in capfd.readouterr().err


def test_queued_job_is_stopped_without_a_start(site):
    site.settings = QueueSettings(capacity={"kuberay": {"cpus": 0}})
    site.add("a")
    with site.ledger.writing() as entry:
        entry.ask_to_stop("a", time.time())
    site.turn()
    assert (site.job("a").state, site.job("a").starts) == (JobState.STOPPED, 0)


def test_running_job_is_stopped_and_its_log_kept_before_its_pods_go(site):
    site.add("a")
    site.turn()
    with site.ledger.writing() as entry:
        entry.ask_to_stop("a", time.time())
    site.turn()
    assert site.cluster.stopped == ["a"]
    assert site.job("a").reason == "stopping: runs"
    site.cluster.answer = Status(JobState.LOST, "no such RayJob")
    site.turn()
    assert site.job("a").state == JobState.STOPPED
    assert list(log_archive.read(site.folder / "logs" / "a" / "1")) == [Line(Role.HEAD, "pod", "the log of a")]


def test_deadline_of_a_ray_job_is_kept_by_the_queue(site):
    site.time = 1000.0
    site.add("a", on="ray", deadline=60.0)
    site.turn()
    site.time = 1061.0
    site.turn()
    assert site.cluster.stopped == ["a"]
    site.cluster.answer = Status(JobState.STOPPED, "stopped", ended=1062.0)
    site.turn()
    assert (site.job("a").state, site.job("a").exit_code) == (JobState.FAILED, 4)


def test_job_that_kueue_queues_passes_the_local_capacity_by(site):
    site.settings = QueueSettings(capacity={"kuberay": {"cpus": 0}})
    site.cluster.answer = Status(JobState.QUEUED, "Kueue: insufficient quota for cpu")
    site.add("a", queued_elsewhere=True)
    site.add("b")
    site.turn(3)
    assert site.cluster.submitted == ["a"]
    assert (site.job("a").state, site.job("a").reason) == (JobState.QUEUED, "Kueue: insufficient quota for cpu")
    assert "will never fit" in site.job("b").reason


def test_job_over_its_budget_waits_and_starts_when_there_is_money(site):
    site.settings = QueueSettings(budgets={"p": 1.0})
    site.add("a", hourly=3600.0, seconds=2.0)
    site.turn()
    assert "will never start" in site.job("a").reason
    site.settings = QueueSettings(budgets={"p": 2.0})
    site.turn()
    assert site.job("a").state == JobState.RUNNING


def test_jobs_on_one_machine_get_gpus_of_their_own(site):
    site.machine = replace(MACHINE, gpus=3)
    script = f'while [ ! -e {site.folder}/go ]; do sleep 0.02; done; echo "gpus: $CUDA_VISIBLE_DEVICES"'
    for id, gpus in (("one", 1), ("two", 2), ("none", 0)):
        site.add(id, "/bin/sh", "-c", script, on="local", spec={"gpus": gpus})
    with site.managed():
        until(lambda: all(site.job(id).state == JobState.RUNNING for id in ("one", "two", "none")))
        (site.folder / "go").touch()
        site.until_ended("one", "two", "none")
    executor = LocalExecutor(site.folder / "jobs")
    said = {id: next(executor.logs(id, role=None, tail=None, follow=False)).text for id in ("one", "two", "none")}
    assert said == {"one": "gpus: 0", "two": "gpus: 1,2", "none": "gpus: "}


def test_manager_starts_another_supervisor_for_a_job_whose_own_was_killed(site):
    site.add("a", "/bin/sh", "-c", "sleep 3600", on="local", spec={"deadline": 4})
    with site.managed():
        until(lambda: site.job("a").state == JobState.RUNNING)
        os.kill(JobFolder(site.folder / "jobs" / "a").start(), signal.SIGKILL)
        site.until_ended("a")
    assert (site.job("a").state, site.job("a").exit_code) == (JobState.FAILED, 4)
    assert "deadline of 4 s" in site.job("a").reason


def test_wall_clock_that_is_set_back_by_an_hour_holds_up_no_job(site):
    site.add("before", "/bin/sh", "-c", f"while [ ! -e {site.folder}/go ]; do sleep 0.02; done", on="local")
    with site.managed():
        until(lambda: site.job("before").state == JobState.RUNNING)
        site.offset = -3600.0
        site.add("after", on="local")
        site.until_ended("after")
        (site.folder / "go").touch()
        site.until_ended("before")
    assert {job.state for job in site.ledger.jobs()} == {JobState.SUCCEEDED}


def test_retry_does_not_wait_longer_because_the_clock_was_set_back(site):
    site.add("a", "/bin/sh", "-c", f"[ -e {site.folder}/go ]", on="local", retries=1)
    site.offset = 86400.0
    with site.managed():
        while site.job("a").starts < 1 or site.job("a").state != JobState.QUEUED:
            time.sleep(0.01)
    (site.folder / "go").touch()
    site.offset = 0.0
    with site.managed():
        site.until_ended("a")
    assert site.job("a").state == JobState.SUCCEEDED


def test_wall_clock_that_steps_forward_ends_no_ray_job_before_its_deadline(site):
    ticks, site.time = [0.0], 1000.0
    manager = site.manager(lambda: ticks[0])
    site.add("a", on="ray", deadline=60.0)

    def turn(seconds):
        ticks[0] += seconds
        with ThreadPoolExecutor(1) as pool:
            manager.turn(pool)

    turn(0)
    site.time += 86400.0
    turn(30)
    assert (site.cluster.stopped, site.job("a").state) == ([], JobState.RUNNING)
    turn(31)
    assert site.cluster.stopped == ["a"]


def test_failed_rayjob_is_deleted_and_repeated_under_a_name_of_its_own_and_its_log_is_kept(site):
    site.cluster.answer = Status(JobState.FAILED, "exit code 1", 1, retryable=True)
    site.add("tune-x7k2p", retries=1)
    site.turn()
    job = site.job("tune-x7k2p")
    assert (job.state, job.starts, site.cluster.stopped) == (JobState.QUEUED, 1, ["tune-x7k2p"])
    queue = Queue(site.folder, lambda _: site.cluster, ["false"])
    nobody = Queue(site.folder, lambda _: None, ["false"])  # its cluster is gone
    assert [line.text for line in nobody.logs(job, role=None, tail=None, follow=False)] == ["the log of tune-x7k2p"]
    site.cluster.answer = Status(JobState.FAILED, "exit code 2", 2)
    site.time = time.time() + 60
    site.turn()
    job = site.job("tune-x7k2p")
    assert (job.state, job.starts, job.failures) == (JobState.FAILED, 2, 2)
    assert site.cluster.submitted == ["tune-x7k2p", "tune-x7k2p-2"]
    said = {n: [line.text for line in queue.logs(job, role=None, tail=None, follow=False, start=n)] for n in (1, 2)}
    assert said == {1: ["the log of tune-x7k2p"], 2: ["the log of tune-x7k2p-2"]}


def test_start_on_kubernetes_that_failed_has_cost_what_it_ran(site):
    began = site.time = time.time() + 1
    site.cluster.answer = Status(JobState.RUNNING, "runs", started=began, placed=began)
    site.add("a", hourly=3600.0, retries=1)
    site.turn()
    site.time = began + 10
    site.cluster.answer = Status(JobState.FAILED, "exit code 1", 1, started=began, ended=began + 10, retryable=True)
    site.turn()
    assert (site.job("a").state, site.job("a").submitted) == (JobState.QUEUED, False)
    assert site.job("a").cost(began + 1000) == pytest.approx(10)


def test_job_that_kueue_preempts_costs_nothing_until_it_runs_again(site):
    began = site.time = time.time() + 1
    site.cluster.answer = Status(JobState.RUNNING, "runs", started=began, placed=began)
    site.add("a", hourly=3600.0, queued_elsewhere=True)
    site.turn()
    site.time = began + 10
    site.cluster.answer = Status(JobState.QUEUED, "held by Kueue: preempted")
    for _ in range(2):
        site.turn()
    assert (site.job("a").state, site.job("a").reason) == (JobState.QUEUED, "held by Kueue: preempted")
    assert site.job("a").cost(began + 1000) == pytest.approx(10)
    site.time = again = began + 1000
    site.cluster.answer = Status(JobState.RUNNING, "runs", started=again, placed=again)
    site.turn()
    job = site.job("a")
    assert (job.state, job.starts, job.failures, job.started) == (JobState.RUNNING, 1, 0, pytest.approx(again))
    assert job.cost(again + 5) == pytest.approx(15)
    assert site.cluster.submitted == ["a"]


def test_job_that_is_queued_while_others_wait_starts_though_the_plan_of_them_is_kept(site):
    site.settings, manager = QueueSettings(capacity={"kuberay": {"cpus": 0}}), site.manager()
    for number in range(20):
        site.add(f"waits-{number}")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            manager.turn(pool)
        site.add("near", on="local")
        manager.turn(pool)
        assert site.job("near").starts == 1
        site.settings = QueueSettings(capacity={"kuberay": {"cpus": 1}})
        manager.turn(pool)
    assert site.job("waits-0").starts == 1


def test_waiting_jobs_are_planned_anew_after_seconds_of_the_clock_that_nobody_sets(site, monkeypatch):
    planned, plan, ticks = [], schedule.plan, [0.0]
    monkeypatch.setattr(schedule, "plan", lambda *all, **more: (planned.append(ticks[0]), plan(*all, **more))[1])
    site.settings, site.time = QueueSettings(capacity={"kuberay": {"cpus": 0}}), 1e9
    manager = site.manager(lambda: ticks[0])
    site.add("waits")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            manager.turn(pool)
        assert len(planned) <= 2  # the second one since the first wrote why the job waits
        site.time -= 3600.0
        ticks[0] += SECONDS_BETWEEN_PLANS
        manager.turn(pool)
    assert planned[-1] == SECONDS_BETWEEN_PLANS


def test_token_goes_with_the_last_job_that_needs_it(site):
    kept, own = site.folder / "tokens" / "abc", site.folder / "elsewhere"
    kept.parent.mkdir()
    for file in (kept, own):
        file.write_text("SECRET")
    for id, file in (("a", kept), ("b", kept), ("c", own)):
        site.add(id, on="ray", target={"on": "ray", "address": "http://127.0.0.1:1", "token_file": str(file)})
    queue = Queue(site.folder, lambda _: site.cluster, ["false"])
    queue.delete(["a", "c"], force=True)
    assert (kept.exists(), own.exists()) == (True, True)
    queue.delete(["b"], force=True)
    assert not kept.exists()
