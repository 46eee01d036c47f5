"""What a terminal says of the epoch that was chosen and of why training ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from sp500.config import RunConfig, TrainConfig
from sp500.report import terminal
from sp500.runs.record import make_record

STOPPED = "stopped after epoch {}: 5 epochs without a lower validation loss (--train.early-stop-patience)"
MORE = "more epochs (--train.epochs) may help"


@pytest.mark.parametrize(
    ("best", "train", "said", "unsaid"),
    [
        (3, TrainConfig(), STOPPED.format(8) + "; the best, 3, is used", MORE),
        (0, TrainConfig(), STOPPED.format(5) + "\nno epoch had a lower validation loss than the naive", "the best,"),
        (20, TrainConfig(), "a: ok", "stopped after"),  # the 25 epochs ended with the patience
        (25, TrainConfig(), "the last epoch, 25, was the best: " + MORE, "stopped after"),
        (3, TrainConfig(early_stop_patience=0), "a: ok", "stopped after"),
        (3, TrainConfig(max_steps=10), "a: ok", "stopped after"),
    ],
)
def test_end_of_training_is_explained(best: int, train: TrainConfig, said: str, unsaid: str) -> None:
    metrics = {"valid": {"mse": 0.1}, "test": {"mse": 0.1}, "naive": {"mean": {"mse": 0.1}}}
    config = RunConfig(train=train)
    record = make_record(config, name="a", experiment="train", arm="solo", best_epoch=best, metrics=metrics)
    text = terminal.text(record, Path("runs"))
    assert said in text
    assert unsaid not in text
