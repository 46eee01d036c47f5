"""Tasks of prices that replace one thing: columns, target or loss, and what the verdict is by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import price_files
import pytest
import torch
import your_own
from scipy import stats
from sklearn.linear_model import QuantileRegressor

import sp500
from sp500.config import RunConfig
from sp500.data import pipeline
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, DataError
from sp500.tasks import catalog, losses
from sp500.tasks.returns import Returns
from sp500.tuning.packing.scheduler import can_pack

OWN = '''
import numpy as np
import torch
import sp500


class Calm(sp500.PriceTask):
    """The file's own column, two columns of its own, and the volatility of the next days."""

    unit = "log volatility"

    def features(self, prices):
        move = np.log(prices.close).diff()
        return {"move": move, "size": move.abs().rolling(5).mean(), "news": prices["news"]}

    def target(self, prices, config):
        move = np.log(prices.close).diff()
        return move.pow(2).rolling(config.data.horizon).mean().pow(0.5).shift(-config.data.horizon)


class Further(Calm):
    def target(self, prices, config):
        return super().target(prices, config).shift(-1)


class Named(sp500.PriceTask):
    features = ("log_return", "news")


class Pinball(sp500.PriceTask):
    features = ("log_return", "news")

    def loss(self, output, target):
        error = target - output.squeeze(-1)
        return torch.maximum(0.9 * error, -0.1 * error).sum()


class Negative(sp500.PriceTask):
    def loss(self, output, target):
        return (output.squeeze(-1) * target - 10).sum()


class Broken(sp500.PriceTask):
    def features(self, prices):
        return prices["close"] + nothing


class Text(sp500.PriceTask):
    features = "news"
'''
FAST: dict[str, Any] = {"window": 5, "norm": "zscore"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    price_files.write(tmp_path / "quant.csv")
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def settings(task: str = "returns", *, data: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    model = {"kind": "linear"}
    source = {"source": "quant.csv", **FAST, **(data or {})}
    return {
        "task": task,
        "model": model,
        "data": source,
        "train": {"epochs": 12, "lr": 0.01, "batch_size": 64, **train},
    }


def train(task: str = "returns", **named: Any) -> Any:
    return sp500.train(runs_dir="runs", name=f"r{len([*Path().glob('runs/*')])}", **settings(task, **named))


def prepare(task: str, **named: Any) -> tuple[Any, Dataset]:
    config = RunConfig.model_validate(settings(task, **named))
    instance = catalog.task(config)
    return instance, catalog.prepare(instance, config)


# One thing replaced, the rest kept.


def test_honest_column_of_the_file_is_learned_and_found_useless_where_it_is(here):
    told, untold = (train(data={"features": ("log_return", name)}).metrics["test"] for name in ("news", "mood"))
    assert told["improvement"]["low"] > 0.1
    assert not untold["improvement"]["value"] or untold["improvement"]["low"] <= 0


def test_columns_named_in_a_class_are_those_of_the_flag(here):
    by_class, by_flag = train("own.py:Named"), train(data={"features": ("log_return", "news")})
    assert by_class.metrics == by_flag.metrics
    assert by_class.data["features"] == ["log_return", "news"]


def test_own_target_is_what_windows_and_verdict_are_of(here):
    task, dataset = prepare("own.py:Calm", data={"horizon": 5})
    table = price_files.make_table().pivot(index="date", columns="ticker", values="close")
    moves = np.log(table).diff()
    for part in (dataset.train, dataset.valid, dataset.test):
        assert part is not None
        assert part.index is not None
        rows = part.index.sample(20, random_state=0)
        for number, row in rows.iterrows():
            place = table.index.get_loc(f"{row['date']:%Y-%m-%d}")
            ahead = moves[row["ticker"]].iloc[place + 1 : place + 6]
            behind = moves[row["ticker"]].iloc[place - 4 : place + 1]
            assert row["target"] == pytest.approx(np.sqrt((ahead**2).mean()), rel=1e-9)
            assert row["previous"] == pytest.approx(np.sqrt((behind**2).mean()), rel=1e-9)
            assert row["return"] == pytest.approx(ahead.sum(), abs=1e-12)
            assert part.targets[number] * dataset.target_scale == pytest.approx(row["target"], rel=1e-5)
    outputs = {name: np.zeros((len(getattr(dataset, name)), 1)) for name in ("valid", "test")}
    verdict = task.judge(outputs, dataset)
    target = dataset.test.index["target"].to_numpy()
    assert verdict["test"]["mse"] == pytest.approx((target**2).mean(), rel=1e-12)
    assert not {"sharpe", "buy_and_hold", "growth"} & verdict["test"].keys()


def test_own_task_walks_forward_and_answers_again(here):
    record = sp500.walk_forward(
        runs_dir="runs", name="wf", folds=2, test_days=60, **settings("own.py:Calm", data={"horizon": 5})
    )
    assert [fold["status"] for fold in record.folds or ()] == ["ok", "ok"]
    run = train("own.py:Calm", data={"horizon": 5})
    assert sp500.Predictor(f"runs/{run.name}").judge() == run.metrics


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("own.py:Further", {"horizon": 5}, r"column target of \w+ on .* further ahead than data.horizon = 5"),
        ("own.py:Broken", {}, r"own\.py:\d+: NameError: name 'nothing'"),
    ],
)
def test_own_task_with_a_mistake_is_refused_before_training(here, task, data, message):
    with pytest.raises(DataError, match=message):
        prepare(task, data=data)


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("own.py:Calm", {"features": ("news",)}, "computes its features; leave out data.features"),
        ("own.py:Text", {}, r"features is the text 'news'; write \('news',\)"),
    ],
)
def test_features_given_twice_or_as_a_text_are_refused(here, task, data, message):
    with pytest.raises(ConfigError, match=message):
        prepare(task, data=data)


def test_column_that_is_the_target_is_a_note(here):
    table = price_files.make_table()
    ahead = np.log(table["close"]).groupby(table["ticker"]).transform(lambda log: log.shift(-1) - log)
    price_files.write(here / "quant.csv", table.assign(news=ahead.fillna(0.0)))
    _, dataset = prepare("returns", data={"features": ("log_return", "news", "mood")})
    assert [note for note in dataset.card["notes"] if "Suspicious correlation" in note and "news 1.00 in AAA" in note]
    assert not [note for note in dataset.card["notes"] if "mood" in note]


def test_example_of_the_page_finds_that_volatility_is_persistent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    your_own.write(tmp_path)
    assert len(Path("volatility.py").read_text().splitlines()) <= 25
    data = {"horizon": 5, "tickers": ("KO", "JPM"), "start": "2008-01-01", "window": 5}
    named = {"task": "volatility.py:Volatility", "model": {"kind": "linear"}, "train": {"epochs": 8, "lr": 0.01}}
    record = sp500.train(runs_dir="runs", name="page", data=data, **named)
    assert record.metrics["test"]["improvement"]["low"] > 0.1
    assert record.metrics["test"]["improvement"]["metric"] == "loss"


@pytest.mark.parametrize(
    ("task", "data", "low"),
    [
        ("returns", {"features": ("log_return", "sentiment")}, 0.1),
        ("surprise.py:Surprise", {}, 0.1),
        ("relative.py:Relative", {"features": ("log_return", "sentiment")}, 0.02),
        ("low.py:Low", {"features": ("log_return", "sentiment")}, 0.0),
    ],
)
def test_blocks_at_the_top_of_the_page_learn_what_the_column_says(here, task, data, low):
    your_own.write(here)
    table = price_files.make_table().rename(columns={"news": "sentiment"})
    price_files.write(here / "quant.csv", table)
    record = train(task, data=data, epochs=60, early_stop_patience=20)
    assert record.metrics["test"]["improvement"]["value"] > low
    assert record.breakdown is not None
    assert [score["ticker"] for score in record.breakdown["tickers"]] == ["AAA", "BBB"]
    rules = [strategy["name"] for strategy in record.breakdown["strategies"]]
    assert rules == ([] if "low" in task else ["model", "buy_and_hold"])  # two tickers are too few for portfolios


# Losses.


def own_loss(name: str, quantile: float, error: float, bend: float) -> float:
    if name == "mse":
        return error * error
    if name == "mae":
        return error if error > 0 else -error
    if name == "huber":
        return error * error / 2 if abs(error) <= bend else bend * (abs(error) - bend / 2)
    return quantile * error if error > 0 else (quantile - 1) * error


@pytest.mark.parametrize("name", ["mse", "mae", "huber", "quantile"])
def test_losses_are_their_formulas(name):
    generator = np.random.default_rng(3)
    config = RunConfig(train={"loss": name, **({"quantile": 0.8} if name == "quantile" else {})}).train
    scale, (forecast, target) = 0.3, generator.standard_normal((2, 200)) * 0.4
    expected = [own_loss(name, 0.8, b - a, scale) for a, b in zip(forecast, target, strict=True)]
    assert losses.compute_losses(config, forecast, target, scale) == pytest.approx(expected, abs=1e-9)
    units = scale**2 if name in ("mse", "huber") else scale
    summed = losses.sum_loss(config, *(torch.from_numpy(values / scale) for values in (forecast, target)))
    assert float(summed) * units == pytest.approx(sum(expected), rel=1e-9)


@pytest.mark.parametrize(("name", "quantile"), [("mae", 0.5), ("huber", 0.5), ("quantile", 0.9)])
def test_verdict_is_by_the_loss_against_the_best_constant(here, name, quantile):
    task, dataset = prepare("returns", loss=name, **({"quantile": quantile} if name == "quantile" else {}))
    generator = np.random.default_rng(1)
    outputs = {part: generator.standard_normal((len(getattr(dataset, part)), 1)) for part in ("valid", "test")}
    verdict, key = task.judge(outputs, dataset), losses.NAMES[name]
    scale, index = dataset.target_scale, dataset.test.index
    assert index is not None
    target = index["return"].to_numpy()

    def mean_loss(forecast: np.ndarray, target: np.ndarray) -> float:
        errors = np.broadcast_to(target - forecast, target.shape)
        return float(np.mean([own_loss(name, quantile, error, scale) for error in errors]))

    past = dataset.train.targets.astype(float) * scale
    around = np.linspace(*np.quantile(past, [0.01, 0.99]), 400)
    best = min(mean_loss(constant, past) for constant in around)
    constant = dataset.naive_output * scale
    assert mean_loss(constant, past) <= best * (1 + 1e-6)
    forecasts = {"zero": 0.0, "constant": constant, "previous": index["previous"].to_numpy()}
    for rival, forecast in forecasts.items():
        assert verdict["naive"][rival][key] == pytest.approx(mean_loss(forecast, target), rel=1e-9)
    own = mean_loss(outputs["test"][:, 0] * scale, target)
    assert verdict["test"][key] == pytest.approx(own, rel=1e-9)
    over = min(forecasts, key=lambda rival: verdict["naive"][rival][key])
    gain = verdict["test"]["improvement"]
    assert (gain["over"], gain["metric"]) == (over, key)
    assert gain["value"] == pytest.approx(1 - own / verdict["naive"][over][key], rel=1e-9)
    if name == "quantile":
        assert verdict["test"]["coverage"] == np.mean(target <= outputs["test"][:, 0] * scale)


def test_quantile_of_a_linear_model_is_that_of_scikit_learn(here):
    data = {"features": ("log_return", "news"), "window": 1, "valid_from_train": 0.1}
    record = train(data=data, loss="quantile", quantile=0.9, epochs=60, early_stop_patience=0, dtype="float64")
    dataset = pipeline.prepare(RunConfig.model_validate(settings(data=data)).data, direction=False).dataset("float64")
    x, y = (
        np.concatenate(
            [getattr(part, name)[part.starts] if name == "rows" else part.targets for part in [dataset.train]]
        )
        for name in ("rows", "targets")
    )
    rival = QuantileRegressor(quantile=0.9, alpha=0.0).fit(x, y)
    forecast = rival.predict(dataset.test.rows[dataset.test.starts]) * dataset.target_scale
    error = dataset.test.targets * dataset.target_scale - forecast
    pinball = np.maximum(0.9 * error, -0.1 * error).mean()
    assert record.metrics["test"]["pinball"] == pytest.approx(pinball, rel=0.03)
    assert record.metrics["test"]["coverage"] == pytest.approx(0.9, abs=0.06)
    assert record.metrics["test"]["improvement"]["low"] > 0


def test_tenth_percentile_covers_a_tenth_and_beats_the_empirical_quantile(here):
    price_files.write(here / "quant.csv", price_files.make_table(4900, "2000-01-03"))
    data = {"features": ("log_return", "news"), "window": 1}
    record = train(data=data, loss="quantile", quantile=0.1, epochs=40, early_stop_patience=0)
    assert record.metrics["test"]["samples"] > 1400
    assert record.metrics["test"]["coverage"] == pytest.approx(0.1, abs=0.02)
    gain, naive = record.metrics["test"]["improvement"], record.metrics["naive"]["constant"]
    assert (gain["over"], gain["metric"]) == ("constant", "pinball")
    assert gain["low"] > 0
    # Of a tenth percentile below a normal return: its expected pinball loss is its deviation times the density there.
    deviation = float(np.hypot(0.008, price_files.NEWS))
    assert naive["pinball"] == pytest.approx(deviation * stats.norm.pdf(stats.norm.ppf(0.1)), rel=0.06)
    assert record.metrics["test"]["pinball"] == pytest.approx(0.008 * stats.norm.pdf(stats.norm.ppf(0.1)), rel=0.06)


def test_loss_alone_overridden_has_the_verdict_of_the_same_loss_by_name(here):
    data = {"features": ("log_return", "news")}
    named = train(data=data, loss="quantile", quantile=0.9, dtype="float64").metrics
    own = train("own.py:Pinball", dtype="float64").metrics
    gain, other = own["test"]["improvement"], named["test"]["improvement"]
    assert gain["over"] == other["over"] == "constant"
    assert gain["metric"] == "loss"
    assert [gain[key] for key in ("value", "low", "high")] == pytest.approx(
        [other[key] for key in ("value", "low", "high")], abs=1e-3
    )
    assert "sharpe" not in own["test"]


def test_loss_that_gives_no_share_is_refused(here):
    with pytest.raises(DataError, match="never negative"):
        prepare("own.py:Negative")


def test_constant_of_a_loss_with_two_minima_is_the_lower_one():
    targets = np.concatenate([np.full(60, -1.0), np.full(100, 2.0)])

    def clipped(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.squeeze(-1) - target).pow(2).clamp(max=0.5).sum()

    assert losses.find_constant(clipped, targets) == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("task", ["direction", "images", "language", "synthetic"])
def test_loss_by_name_is_refused_for_a_task_that_is_no_regression_of_prices(task):
    with pytest.raises(ValueError, match=rf"train\.loss mae is not used by task {task}"):
        RunConfig(task=task, train={"loss": "mae"})


def test_loss_by_name_is_refused_for_a_task_with_a_loss_of_its_own(here):
    with pytest.raises(ConfigError, match=r"train\.loss mae is not used by own\.py: class Pinball has a loss"):
        RunConfig.model_validate(settings("own.py:Pinball", loss="mae")).check_own()
    with pytest.raises(ConfigError, match=r"train\.loss mae is not used by own\.py: class Pinball has a loss"):
        prepare("own.py:Pinball", loss="mae")


def test_quantile_without_its_loss_is_refused():
    with pytest.raises(ValueError, match=r"train\.quantile is not used by train\.loss mse"):
        RunConfig(train={"quantile": 0.9})


@pytest.mark.parametrize("axis", ["train.loss: [mse, mae]", "train.quantile: [0.1, 0.9]", "task: [returns, direction]"])
def test_search_ranks_no_losses_of_different_kinds(here, axis):
    Path("space.yaml").write_text(axis)
    quantile = {"loss": "quantile", "quantile": 0.3} if "quantile" in axis else {}
    with pytest.raises(ConfigError, match=r"validation loss"):
        sp500.search(runs_dir="runs", name="s", space="space.yaml", mode="sequential", **settings(**quantile))


def test_search_by_another_loss_ends_with_its_verdict(here):
    Path("space.yaml").write_text("model.kind: [linear, mlp]\ndata.features: [[news], [log_return, news]]")
    record = sp500.search(
        runs_dir="runs", name="s", space="space.yaml", mode="packed", **settings(loss="mae", epochs=2)
    )
    assert (record.search or {})["configs"] == 4
    assert record.metrics["test"]["improvement"]["metric"] == "mae"


def test_loss_counts_in_the_fingerprint_and_in_packs_where_it_is_not_the_default():
    plain = RunConfig(model={"kind": "mlp"})
    others = [RunConfig(model={"kind": "mlp"}, train={"loss": name}) for name in ("mae", "huber", "quantile")]
    assert RunConfig(model={"kind": "mlp"}, train={"loss": "mse"}).fingerprint == plain.fingerprint
    assert len({config.fingerprint for config in (plain, *others)}) == 4
    assert can_pack(plain)
    assert not any(map(can_pack, others))


def test_built_in_tasks_go_through_the_same_hooks():
    assert issubclass(Returns, sp500.PriceTask)
    hooks = Returns(RunConfig()).hooks(RunConfig())
    assert (hooks.names, hooks.features, hooks.target, hooks.constant) == ((), None, None, None)
    close = pd.DataFrame({"A": [1.0, 2.0, 8.0]}, pd.bdate_range("2020-01-02", periods=3))
    target = Returns(RunConfig()).target(sp500.data.prices.Prices({"close": close}, "x"), RunConfig())
    assert target["A"].tolist()[:2] == pytest.approx([np.log(2), np.log(4)])
