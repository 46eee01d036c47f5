"""What the report shows of classes: the confusion matrix as a picture, and losses that fall by orders of magnitude."""

import re
from typing import Any

import pytest
from test_tables import record

from sp500.report.models import figures
from sp500.report.models.results import Group, group_runs
from sp500.runs.record import EpochMetrics


def group(matrix: list[list[int]] | None = None, **changes: Any) -> Group:
    test = {"accuracy": 0.9, "samples": 30, "confusion_matrix": matrix}
    naive = {"majority": {"accuracy": 0.4}}
    config = {"task": "images", "model": {"kind": "cnn"}}
    (found,) = group_runs([record("a", config=config, metrics={"test": test, "naive": naive}, **changes)])
    return found


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_every_count_of_the_confusion_matrix_is_in_the_picture():
    found = figures.confusion(group([[17, 2, 0], [0, 13, 0], [5, 0, 19]]))
    assert found is not None
    assert {"17", "13", "19", "5", "predicted", "truth"} <= set(texts(found.svg))


@pytest.mark.parametrize("matrix", [None, [[1, 2], [3, 4]], [[1] * 21] * 21])
def test_other_matrices_have_no_picture(matrix):
    assert figures.confusion(group(matrix)) is None


@pytest.mark.parametrize(("last", "logarithmic"), [(1e-4, True), (0.5, False)])
def test_losses_over_orders_of_magnitude_are_on_a_logarithmic_axis(last, logarithmic):
    losses = [1.0, last]
    epochs = [
        EpochMetrics(epoch=n, train_loss=loss, valid_loss=loss, samples=1, train_seconds=1, seconds=1)
        for n, loss in enumerate(losses, 1)
    ]
    found = figures.curves(group(), {"a": epochs})
    assert found is not None
    assert ("logarithmic" in found.caption) == logarithmic


def test_measures_of_a_task_are_drawn_per_epoch() -> None:
    common = {"train_loss": 1.0, "valid_loss": 1.0, "samples": 1, "seconds": 1.0}
    epochs = [EpochMetrics(epoch=number, measures={"top1": number / 4}, **common) for number in (1, 2)]
    assert figures.measures(group(), {"a": [epoch.model_copy(update={"measures": {}}) for epoch in epochs]}) is None
    assert figures.measures(group(), {"a": epochs}) is not None
