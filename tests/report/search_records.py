"""Records of searches, as the tests of the report make them."""

from datetime import timedelta
from typing import Any

from result_rows import NOW as START
from result_rows import chosen, run_record, search_summary

from sp500.runs.record import RunRecord, Seconds

VALID = {
    "mse": 1.0e-4,
    "r2": 0.002,
    "sharpe_after_cost": 0.8,
    "sharpe_after_cost_interval": [-0.1, 1.7],
    "buy_and_hold": {"sharpe_after_cost": 1.0, "sharpe_after_cost_interval": [0.1, 1.9]},
}
TEST = {
    "mse": 2.0e-4,
    "r2": -0.01,
    "sharpe_after_cost": -0.1,
    "sharpe_after_cost_interval": [-1.0, 0.8],
    "buy_and_hold": {"sharpe_after_cost": 0.4, "sharpe_after_cost_interval": [-0.5, 1.3]},
    "improvement": {"over": "zero", "metric": "mse", "value": -0.1, "low": None, "high": None},
}


def side(name: str, minute: int, arm: str, seconds: float, loss: float = 0.4, **more: Any) -> RunRecord:
    """A search of 18 configs that ended `minute` minutes after the first; `more` goes into what it says of itself."""
    ended = START + timedelta(minutes=minute)
    config: dict[str, Any] = {"task": "returns", "data": {}, "model": {"kind": "mlp", "hidden": 64, "layers": 2}}
    return run_record(
        name,
        experiment="tune",
        arm=arm,
        config=config | {"data": {"horizon": more.pop("horizon", 1)}},
        fingerprint="c07",
        started=ended - timedelta(seconds=seconds),
        finished=ended,
        seconds=Seconds(setup=1, train=1, total=seconds),
        metrics=more.pop("metrics", {"valid": VALID, "test": TEST, "naive": {}}),
        search=search_summary(cores=1 if arm == "sequential" else 2, best=chosen(valid_loss=loss)) | more,
    )
