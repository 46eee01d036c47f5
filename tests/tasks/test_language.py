"""Language as a task: the network is causal, the loss is per byte, and compressors stand next to it."""

import math

import numpy as np
import pytest
import torch

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data.text import naive
from sp500.data.text.settings import TextConfig
from sp500.data.windows import Dataset
from sp500.tasks import catalog
from sp500.training.loop import fit
from sp500.training.worker import SoloWorker

CONFIG = RunConfig(
    task="language",
    text=TextConfig(max_bytes=30_000, context=32),
    model=ModelConfig(kind="gpt", hidden=32, layers=1, dropout=0.0),
    train=TrainConfig(epochs=3, lr=0.01, batch_size=16),
)


@pytest.fixture(scope="module")
def docs() -> Dataset:
    return catalog.task(CONFIG).prepare(CONFIG)


def test_network_sees_no_later_byte(docs):
    model = catalog.task(CONFIG).model(CONFIG, docs).double()
    torch.nn.init.normal_(model.head.weight)
    x = torch.randint(256, (2, 32), dtype=torch.uint8)
    changed = x.clone()
    changed[:, 20:] = 0
    one, other = model(x), model(changed)
    assert one.shape == (2, 32, 256)
    torch.testing.assert_close(one[:, :20], other[:, :20])
    assert not torch.allclose(one[:, 20:], other[:, 20:])


def test_untrained_network_gives_all_bytes_the_same_probability(docs):
    config = CONFIG.model_copy(update={"train": TrainConfig(epochs=1, max_steps=1, lr=1e-12)})
    task = catalog.task(config)
    found = task.judge(fit(task, docs, config, SoloWorker(torch.device("cpu"))).outputs, docs)
    assert found["test"]["bits_per_byte"] == pytest.approx(8)
    assert found["test"]["perplexity"] == pytest.approx(256)


def test_training_beats_equal_probabilities_and_is_judged_per_byte(docs):
    task = catalog.task(CONFIG)
    result = fit(task, docs, CONFIG, SoloWorker(torch.device("cpu")))
    found = task.judge(result.outputs, docs)
    assert result.outputs["test"].shape == (len(docs.test), 1)
    assert found["test"]["bytes"] == docs.test.targets.size == len(docs.test) * 32
    assert found["test"]["bits_per_byte"] == pytest.approx(
        result.outputs["test"].sum() / found["test"]["bytes"] / math.log(2)
    )
    assert found["valid"]["loss"] == pytest.approx(result.best_loss, rel=1e-6)
    assert found["test"]["bits_per_byte"] < 5
    assert result.epochs[-1].train_loss < 4  # nats per byte, not per window
    before = docs.train.rows.tobytes() + docs.valid.rows.tobytes()
    expected = naive.bits_per_byte(before, docs.test.rows.tobytes())
    assert {name: one["bits_per_byte"] for name, one in found["naive"].items()} == expected
    gain = found["test"]["improvement"]
    assert gain["over"] == min(expected, key=expected.__getitem__)
    assert gain["value"] == pytest.approx(1 - found["test"]["bits_per_byte"] / expected[gain["over"]])
    assert gain["low"] is gain["high"] is None


def test_what_is_kept_of_a_window_is_the_sum_of_its_loss(docs):
    task = catalog.task(CONFIG)
    output, target = torch.randn(5, 32, 256), torch.from_numpy(docs.test.targets[:5].copy())
    kept = task.kept(output, target)
    assert kept.shape == (5, 1)
    assert kept.sum().item() == pytest.approx(task.loss(output, target).item(), rel=1e-5)
    table = task.predictions(np.ones((len(docs.test), 1)), docs.test, docs)
    assert list(table.columns) == ["start", "nats"]


def test_text_that_a_compressor_needs_no_bits_for_is_judged(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 120_000)
    config = CONFIG.model_copy(update={"text": TextConfig(source=str(tmp_path / "a.txt"), context=32)})
    task = catalog.task(config)
    dataset = task.prepare(config)
    outputs = {name: np.ones((len(part), 1)) for name, part in (("valid", dataset.valid), ("test", dataset.test))}
    found = task.judge(outputs, dataset)
    best = min(one["bits_per_byte"] for one in found["naive"].values())
    assert (found["test"]["improvement"]["value"] is None) == (best <= 0)


def test_sample_continues_the_test_by_what_the_model_says(docs):
    class Counting(torch.nn.Module):
        """Sure that each byte is followed by the next larger one."""

        def forward(self, x):
            return torch.nn.functional.one_hot((x.long() + 1) % 256, 256) * 1e4

    task = catalog.task(CONFIG)
    last = int(docs.test.rows[docs.window - 1])
    expected = bytes((last + 1 + number) % 256 for number in range(200))
    assert task.sample(Counting(), docs) == expected.decode(errors="replace")
    drawn = task.model(CONFIG, docs)
    assert task.sample(drawn, docs) == task.sample(drawn, docs)
