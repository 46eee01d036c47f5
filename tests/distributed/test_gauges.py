"""What Prometheus sees of a run, without Ray running."""

import pytest

from sp500.distributed import gauges
from sp500.runs.record import EpochMetrics

EPOCH = EpochMetrics(epoch=3, train_loss=0.5, valid_loss=0.7, samples=1000, seconds=5.0, train_seconds=4.0)


def test_epoch_is_shown_under_every_name():
    assert gauges.values(EPOCH) == {
        "sp500_epoch": 3.0,
        "sp500_train_loss": 0.5,
        "sp500_valid_loss": 0.7,
        "sp500_windows_per_second": 250.0,
    }
    assert gauges.values(EPOCH).keys() == gauges.NAMES.keys()


@pytest.mark.parametrize(
    ("lacking", "name"),
    [({"valid_loss": None}, "sp500_valid_loss"), ({"train_seconds": 0.0}, "sp500_windows_per_second")],
)
def test_what_an_epoch_lacks_is_not_shown(lacking, name):
    assert gauges.NAMES.keys() - gauges.values(EPOCH.model_copy(update=lacking)).keys() == {name}


def test_gauges_take_every_epoch():
    shown = gauges.EpochGauges("linear")
    shown.set(EPOCH)
    shown.set(EPOCH.model_copy(update={"valid_loss": None}))
