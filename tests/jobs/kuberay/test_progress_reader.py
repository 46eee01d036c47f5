"""What the queue's manager reads of jobs on Kubernetes, keeps and writes on: over HTTP, with clocks of the test."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kube_operator import Operator
from queue_fakes import new_job

from sp500.commands.jobs import job_progress
from sp500.jobs.queue import progress_reader
from sp500.jobs.queue.manager import Manager
from sp500.jobs.queue.progress_reader import SECONDS_AFTER_FAULT, SECONDS_BETWEEN_READS
from sp500.jobs.queue.queue import Queue
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.resources import Resources
from sp500.progress import load

LINE = "2026-01-02T10:00:00Z epoch {} of at most 25, 1240 samples/s, best 0.981, 180 s left: train 1.01"


@pytest.fixture
def site(kube, executor, requested, make, tmp_path):
    """A queue with one job on Kubernetes, a manager of it whose monotonic clock a test sets, and the job's operator."""
    return Site(kube, executor, requested("night-1"), make(), tmp_path / "state")


class Site:
    """One job, its cluster, and its manager."""

    def __init__(self, kube, executor, request, spec, folder):
        self.store, self.operator, self.seconds = kube.store, Operator(kube.store, "night-1"), 0.0
        self.queue = Queue(folder, lambda target: executor, ["false"])
        self.manager = Manager(
            self.queue.ledger, self.queue.logs_folder, lambda target: executor, QueueSettings, Resources(1),
            ticks=lambda: self.seconds,
        )  # fmt: skip
        job = new_job("night-1", spec=spec.model_dump(mode="json"), target={"on": "kuberay"}, request=request)
        with self.queue.ledger.writing() as entry:
            entry.add([job], time.time())
        self.turn()

    def turn(self, after=10.0):
        """A turn of the manager after so many seconds, to the end of its look at the cluster."""
        self.seconds += after
        with ThreadPoolExecutor(1) as pool:
            self.manager.turn(pool)

    @property
    def job(self):
        return self.queue.job("night-1")

    def runs_and_says(self, *lines):
        self.operator.to_running()
        for line in lines:
            self.operator.say(self.operator.submitter, line)
        self.turn()

    @property
    def annotated(self):
        """The epoch that the RayJob's annotation names."""
        text = self.store.get("rayjobs", "night-1")["metadata"]["annotations"].get("sp500/progress")
        return load(text).done if text else None

    @property
    def listed(self):
        """The epoch that `jobs list` shows."""
        found = job_progress.read(self.queue, self.job, live=False)
        return found.done if found else None


def test_progress_of_the_log_is_listed_and_annotated(site):
    site.runs_and_says("downloading", LINE.format(6), LINE.format(7), "a warning")
    assert (site.listed, site.annotated) == (7, 7)
    shown = job_progress.read(site.queue, site.job, live=False)
    assert (
        job_progress.words(shown, shown.updated + 60) == "epoch 7 of at most 25, 1240 samples/s, best 0.981, 120 s left"
    )
    assert job_progress.plain(shown, shown.updated + 60) == {
        "kind": "epoch", "done": 7, "total": 25, "at_most": True, "samples_per_second": 1240.0, "best_loss": 0.981,
        "eta_seconds": 120.0, "updated": 1767348000.0,
    }  # fmt: skip


def test_log_is_read_at_most_every_thirty_seconds_and_status_reads_it_now(site):
    site.runs_and_says(LINE.format(1))
    site.operator.say(site.operator.submitter, LINE.format(2))
    site.turn(after=SECONDS_BETWEEN_READS - 5)
    assert (site.listed, site.annotated) == (1, 1)
    assert job_progress.read(site.queue, site.job, live=True).done == 2
    site.turn(after=5)
    assert (site.listed, site.annotated) == (2, 2)


def test_progress_that_has_not_changed_is_not_written_again(site):
    site.runs_and_says(LINE.format(1))
    before = site.store.get("rayjobs", "night-1")["metadata"]["resourceVersion"]
    site.turn(after=SECONDS_BETWEEN_READS)
    assert site.store.get("rayjobs", "night-1")["metadata"]["resourceVersion"] == before


def test_annotation_that_could_not_be_written_is_written_later_and_the_job_goes_on(site, capfd):
    site.store.denied.add(("patch", "rayjobs"))
    site.runs_and_says(LINE.format(1))
    assert (site.job.state, site.listed, site.annotated) == ("RUNNING", 1, None)
    site.operator.say(site.operator.submitter, LINE.format(2))
    site.turn(after=SECONDS_AFTER_FAULT)
    assert capfd.readouterr().err.count("night-1: no progress: ") == 1
    site.store.denied.clear()
    site.turn(after=SECONDS_AFTER_FAULT)
    assert (site.listed, site.annotated) == (2, 2)


def test_progress_is_gone_with_the_head_that_its_command_ran_on(site):
    site.runs_and_says(LINE.format(7))
    site.operator.tell(rayJobInfo={"startTime": "2026-01-01T00:00:00Z"})
    site.operator.replace_head(crashed=False)
    site.turn()
    assert site.job.state == "PENDING"
    site.operator.replaced += 1  # another pod, whose log has nothing of the first one
    site.operator.start_submitter()
    site.operator.tell(rayJobInfo={"startTime": "2099-01-01T00:00:00Z"})
    site.turn(after=SECONDS_BETWEEN_READS)
    assert (site.job.state, site.listed) == ("RUNNING", None)


def test_cluster_that_does_not_answer_status_shows_what_was_read_last(site, kube):
    site.runs_and_says(LINE.format(3))
    kube.fail("GET /api/v1/namespaces/sp500/pods", times=50)
    assert job_progress.read(site.queue, site.job, live=True).done == 3


def test_job_that_has_ended_shows_no_progress(site):
    site.runs_and_says(LINE.format(3))
    site.operator.succeed()
    site.turn()
    assert site.job.state == "SUCCEEDED"
    assert job_progress.read(site.queue, site.job, live=True) is None


def test_file_of_another_version_gives_no_progress(site):
    site.runs_and_says(LINE.format(3))
    (file,) = site.queue.logs_folder.rglob(progress_reader.FILE)
    file.write_text('{"kind": "epoch", "share": 0.5}')
    assert site.listed is None
