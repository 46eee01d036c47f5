"""Progress in words."""

import pytest

from sp500.commands.jobs import job_progress
from sp500.progress import RunProgress


@pytest.mark.parametrize(
    ("rate", "best", "left", "words"),
    [
        (None, None, None, "epoch 7/25"),
        (0.523, 0.98123, 18.4, "epoch 7/25, 0.52/s, best 0.9812, 18 s left"),
        (950.4, -2.5e-6, 180.0, "epoch 7/25, 950/s, best -2.5e-06, 3.0 min left"),
        (1240.0, 0.981, 7200.0, "epoch 7/25, 1.2k/s, best 0.981, 2.0 h left"),
        (474_260.0, None, 0.0, "epoch 7/25, 474k/s, 0 s left"),
        (1_100_000.0, None, -5.0, "epoch 7/25, 1.1M/s"),
    ],
)
def test_words_are_short(rate, best, left, words):
    ends = None if left is None else 1000.0 + left
    assert job_progress.words(RunProgress("epoch", 7, 25, False, rate, best, ends, 900.0), 1000.0) == words


def test_words_for_no_progress_are_a_dash():
    assert job_progress.words(None, 0.0) == "-"
