"""Ray Tune with one actor per core for all trials, and the data in the object store; a trial reports once.

https://docs.ray.io/en/latest/tune/api/doc/ray.tune.TuneConfig.html (reuse_actors),
https://docs.ray.io/en/latest/tune/api/doc/ray.tune.with_parameters.html
"""

from __future__ import annotations

from typing import Any

import plain
from ray import tune

job = plain.read_job()


def train(config: dict[str, Any], data: plain.Data) -> None:
    """Train one config."""
    loss, epochs = plain.fit(config, data, job)
    tune.report({"loss": loss, "epochs": epochs})


if __name__ == "__main__":
    space = {name: tune.grid_search(values) for name, values in job["axes"].items()}
    trainable = tune.with_parameters(train, data=plain.load(job["data"]))
    results = tune.Tuner(trainable, param_space=space, tune_config=tune.TuneConfig(reuse_actors=True)).fit()
    plain.write(job, [(row.metrics["loss"], row.metrics["epochs"]) for row in results])
