"""Every metric that the Grafana dashboard draws exists: Ray's own dashboards draw it too, or it is one of ours."""

import json
import re
from pathlib import Path

import pytest
import ray.dashboard.modules.metrics
from manifests import CLUSTER, TREES, of_kind, rendered

from sp500.distributed import prometheus

FILE = CLUSTER / "components" / "monitoring" / "dashboard.json"
METRIC = re.compile(r"\b(?:ray|autoscaler)_[a-z0-9_]+(?=\{)")
OURS = {f"ray_{name}" for name in prometheus.NAMES}


def expressions():
    return [target["expr"] for panel in json.loads(FILE.read_text())["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def drawn_by_ray():
    folder = Path(ray.dashboard.modules.metrics.__file__).parent / "dashboards"
    return {name for file in folder.glob("*_panels.py") for name in METRIC.findall(file.read_text().replace("{{", "{"))}


def test_every_metric_is_known_to_ray_or_ours(drawn_by_ray):
    drawn = {name for one in expressions() for name in METRIC.findall(one)}
    assert len(drawn_by_ray) > 50
    assert drawn - drawn_by_ray == OURS


def test_every_metric_is_of_the_chosen_cluster():
    for one in expressions():
        assert len(METRIC.findall(one)) == one.count('ray_io_cluster=~"$cluster"')


def test_panels_stand_on_a_grid_without_a_gap():
    places = [(one["gridPos"]["y"], one["gridPos"]["x"]) for one in json.loads(FILE.read_text())["panels"]]
    assert places == [(8 * row, 8 * column) for row in range(5) for column in range(3)]


def test_overlay_ships_the_file_as_it_is_under_grafanas_label():
    [tree] = [one for one in TREES if one.name == "monitoring"]
    [config] = of_kind(rendered(tree), "ConfigMap")
    assert json.loads(config["data"]["dashboard.json"]) == json.loads(FILE.read_text())
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
