"""What a job is expected to take and to cost before it starts, against sums done by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sp500.commands import rate_table
from sp500.commands.submission.pricing import PricedEstimator
from sp500.errors import ConfigError
from sp500.jobs import client
from sp500.jobs.queue.job import Job
from sp500.jobs.resources import Resources
from sp500.jobs.state import JobState
from sp500.jobs.target import find

RATES = {
    "currency": "EUR",
    "date": "2026-01-02",
    "source": "made up",
    "types": {
        "home": {"cpu_hour": 0.5, "gib_hour": 0, "node": {"cpus": 2, "gib": 8}},
        "rack": {"cpu_hour": 1, "gpu_hour": 0, "gib_hour": 0.25, "node": {"cpus": 2, "gib": 8}, "spot_discount": 0.5},
        "card": {"cpu_hour": 1, "gpu_hour": 10, "gib_hour": 0.25, "node": {"cpus": 2, "gpus": 1, "gib": 8}},
    },
    "rule": {"alone": "home", "cluster": "rack", "gpu": "card"},
}


@pytest.fixture
def expected(tmp_path):
    """With a table of round rates, and earlier jobs."""
    (tmp_path / "rates.yaml").write_text(yaml.safe_dump(RATES))
    table = rate_table.read(tmp_path / "rates.yaml")
    return lambda node_type="", earlier=(), runs_dir=tmp_path: PricedEstimator(table, node_type, earlier, runs_dir)


@pytest.fixture
def there(cluster, tmp_path):
    """A target and how it is reached."""
    pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    pod["containers"] = pod["containers"][:1]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    options = {"cluster": tmp_path / "cluster.yaml", "address": "http://127.0.0.1:8265"}

    def locate(on):
        names = find(on).options.model_fields.keys() & options
        return find(on), find(on).options(**{name: options[name] for name in names})

    return locate


def prepare_job(spec, place, estimator):
    (job,) = client.prepare(Path("/nowhere"), [spec], *place, estimator)
    return job


@pytest.mark.parametrize(
    ("on", "size", "hourly"),
    [
        ("local", {"workers": 3, "cpus": 2}, 3.0),  # 3 x 2 CPUs x 0.50
        ("ray", {"workers": 2, "cpus": 3, "memory": "4GiB"}, 8.0),  # 2 x (3 CPUs x 1 + 4 GiB x 0.25)
        ("ray", {"workers": 1, "cpus": 1}, 3.0),  # 1 CPU x 1 + 8 GiB of its node x 0.25
        ("ray", {"workers": 2, "cpus": 3, "gpus": 1, "memory": "4GiB"}, 28.0),  # 2 x (3 + 10 + 1)
    ],
)
def test_job_costs_what_its_workers_have(expected, there, make, on, size, hourly):
    job = prepare_job(make(expected=1800, **size), there(on), expected())
    assert (job.hourly, job.seconds) == (hourly, 1800)


def test_node_type_given_goes_before_the_rule_and_an_unknown_one_is_refused(expected, there, make):
    assert prepare_job(make(workers=1, cpus=4), there("local"), expected("rack")).hourly == 4.0
    with pytest.raises(ConfigError, match=r"--node-type rak: .*card, home, rack"):
        prepare_job(make(), there("local"), expected("rak"))


def test_job_on_kubernetes_costs_all_its_pods(expected, there, make):
    job = prepare_job(make(workers=2, cpus=3, memory="4GiB"), there("kuberay"), expected())
    pods = {one["kind"]: one for one in job.request["documents"]}["RayJob"]["spec"]
    head = pods["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    # Workers 8.00 as above; the submitter has 0.25 CPU and half a GiB; the head is read off the manifest.
    beside = 0.25 + 0.125 + float(head["cpu"].removesuffix("m")) / (1000 if head["cpu"].endswith("m") else 1)
    assert head["memory"].endswith("Gi")
    assert job.hourly == pytest.approx(8.0 + beside + 0.25 * float(head["memory"].removesuffix("Gi")))


def test_workers_on_spot_nodes_cost_less_and_the_head_does_not(expected, there, make):
    full, spot = (
        prepare_job(make(workers=2, cpus=3, memory="4GiB", node_labels=labels), there("kuberay"), expected()).hourly
        for labels in ({}, {"cloud.google.com/gke-spot": "true"})
    )
    assert full - spot == pytest.approx(4.0)  # half of the workers' 8.00


def earlier(name, seconds, state=JobState.SUCCEEDED):
    return Job(
        number=1, id=name, name=name, target={"on": "local"}, project="p", priority=0, queued_elsewhere=False,
        demand=Resources(1), seconds=None, hourly=0.0, retries=0, deadline=None, state=state, reason="", starts=1,
        failures=0, submitted=True, stop_asked=None, not_before=0.0, started=1000.0, ended=1000.0 + seconds,
    )  # fmt: skip


def test_duration_is_that_of_the_last_jobs_of_the_name_that_succeeded(expected, make):
    jobs = [earlier("tune", 999), *(earlier("tune", seconds) for seconds in (30, 50, 40, 45, 35))]
    jobs += [earlier("tune", 1, JobState.FAILED), earlier("other", 2)]
    assert expected(earlier=jobs).seconds(make(), find("local")) == (30, 50)
    assert expected(earlier=jobs).seconds(make(), find("kuberay")) == (None, None)


def test_duration_on_kubernetes_has_the_start_of_the_cluster_in_it(expected, make, monkeypatch, tmp_path):
    ended = replace(earlier("tune", 30), target={"on": "kuberay"}, placed=955.0)
    assert expected(earlier=[ended]).seconds(make(), find("kuberay")) == (75, 75)
    monkeypatch.setattr("sp500.runs.forecast.estimate", lambda records, experiment, workers: (10.0, 20.0))
    assert expected(runs_dir=tmp_path).seconds(make(), find("local")) == (10, 20)
    assert expected(runs_dir=tmp_path).seconds(make(), find("kuberay")) == (50, 60)


def test_users_own_word_goes_before_and_the_deadline_is_the_limit(expected, make):
    jobs = [earlier("tune", 2000)]
    assert expected(earlier=jobs).seconds(make(expected=7), find("local")) == (7, 7)
    assert expected(earlier=jobs).seconds(make(deadline=1000), find("local")) == (1000, 1000)
    assert expected(earlier=jobs).seconds(make(expected=7000, deadline=1000), find("local")) == (1000, 1000)
    assert expected().seconds(make(deadline=1000), find("local")) == (None, 1000)


def test_nothing_is_expected_of_a_job_that_nobody_knows_and_without_a_table_all_is_free(expected, there, make):
    assert expected().seconds(make(), find("local")) == (None, None)
    assert expected(runs_dir=Path("no such folder")).seconds(make(), find("local")) == (None, None)
    assert prepare_job(make(), there("local"), PricedEstimator()).hourly == 0.0


def test_failed_start_is_the_queues_to_repeat_wherever_it_runs(there, make):
    for on in ("local", "ray", "kuberay"):
        assert prepare_job(make(retries=2), there(on), PricedEstimator()).retries == 2
    job = prepare_job(make(retries=2), there("kuberay"), PricedEstimator())
    assert job.request["documents"][0]["spec"]["backoffLimit"] == 0
