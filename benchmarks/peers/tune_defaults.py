"""Ray Tune with its defaults: a function that reports each epoch, in an actor per trial that loads the data.

https://docs.ray.io/en/latest/tune/getting-started.html
"""

from __future__ import annotations

from typing import Any

import plain
from ray import tune

job = plain.read_job()


def train(config: dict[str, Any]) -> None:
    """Train one config."""
    for loss in plain.train(config, plain.load(job["data"]), job):
        tune.report({"loss": loss})


if __name__ == "__main__":
    space = {name: tune.grid_search(values) for name, values in job["axes"].items()}
    results = tune.Tuner(train, param_space=space).fit()
    plain.write(job, [(row.metrics["loss"], row.metrics["training_iteration"]) for row in results])
