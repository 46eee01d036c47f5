"""What Prometheus sees of a run, without Ray running."""

import pytest

from sp500.distributed import prometheus
from sp500.runs.record import EpochMetrics

EPOCH = EpochMetrics(epoch=3, train_loss=0.5, valid_loss=0.7, samples=1000, seconds=5.0, train_seconds=4.0)


def test_epoch_is_shown_under_every_name():
    assert prometheus.values(EPOCH) == {
        "sp500_epoch": 3.0,
        "sp500_train_loss": 0.5,
        "sp500_valid_loss": 0.7,
        "sp500_windows_per_second": 250.0,
    }
    assert prometheus.values(EPOCH).keys() == prometheus.NAMES.keys()


@pytest.mark.parametrize(
    ("lacking", "name"),
    [({"valid_loss": None}, "sp500_valid_loss"), ({"train_seconds": 0.0}, "sp500_windows_per_second")],
)
def test_what_an_epoch_lacks_is_not_shown(lacking, name):
    assert prometheus.NAMES.keys() - prometheus.values(EPOCH.model_copy(update=lacking)).keys() == {name}


def test_gauges_take_every_epoch():
    shown = prometheus.EpochGauges("linear")
    shown.set(EPOCH)
    shown.set(EPOCH.model_copy(update={"valid_loss": None}))
