"""RAY_ADDRESS: which runs of a script need the cluster that it names, and what is refused before a run begins."""

from contextlib import nullcontext

import pytest

from sp500 import execution
from sp500.errors import ConfigError
from sp500.machine import ray_address
from sp500.runs.record import make_record
from sp500.studies.settings import ScaleSettings, SearchSettings, TrainSettings, WalkForwardSettings

DASHBOARD = "http://127.0.0.1:8265"


@pytest.mark.parametrize(
    ("value", "address"),
    [("", ""), (" ", ""), ("local", ""), ("auto", "auto"), (" 10.0.0.1:6379\n", "10.0.0.1:6379")],
)
def test_empty_and_local_name_no_cluster(monkeypatch, value, address):
    monkeypatch.setenv("RAY_ADDRESS", value)
    assert ray_address.read() == address
    ray_address.check(address)


def test_addresses_of_clusters_pass_and_others_do_not():
    for address in ("auto", "head:6379", "[::1]:6379", "ray://head:10001"):
        ray_address.check(address)
    for address in ("head", "head:", "head:port", "tcp://head:6379", DASHBOARD, "https://ray.example.org/"):
        with pytest.raises(ConfigError, match="unset RAY_ADDRESS"):
            ray_address.check(address)


ALONE = [
    TrainSettings(),
    SearchSettings(),
    SearchSettings(mode="packed"),
    ScaleSettings(arms=("in_memory", "streaming")),
    ScaleSettings(nodes=2),
    WalkForwardSettings(),
]
ON_RAY = [
    TrainSettings(num_workers=1),
    SearchSettings(mode="ray"),
    SearchSettings(mode="all"),
    SearchSettings(workers_per_trial=2),
    ScaleSettings(),
    WalkForwardSettings(num_workers=2),
]


@pytest.mark.parametrize(
    ("needed", "config"),
    [*((False, config) for config in ALONE), *((True, config) for config in ON_RAY)],
    ids=lambda value: value.experiment if isinstance(value, execution.Experiment) else str(value),
)
def test_dashboard_in_ray_address_stops_only_what_needs_ray_and_leaves_no_run(monkeypatch, tmp_path, config, needed):
    monkeypatch.setenv("RAY_ADDRESS", DASHBOARD)
    config = config.model_copy(update={"io": config.io.model_copy(update={"save_dir": tmp_path})})

    def main(config, run):
        """Nothing but a record."""
        return make_record(config, name=run.name, experiment=config.experiment, arm="solo")

    for act in (lambda: execution.outline(config, {}), lambda: execution.execute(config, main)):
        with pytest.raises(ConfigError, match="sp500 jobs submit --on ray") if needed else nullcontext():
            act()
    assert len(list(tmp_path.iterdir())) == (0 if needed else 1)
