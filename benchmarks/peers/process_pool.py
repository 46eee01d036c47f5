"""A pool of processes, each with the data from its start.

https://docs.python.org/3/library/concurrent.futures.html#processpoolexecutor
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import plain


def start(job: dict[str, Any]) -> None:
    """Load the data of this process."""
    global data, settings
    data, settings = plain.load(job["data"]), job


def fit(config: dict[str, Any]) -> plain.Result:
    """Train one config."""
    return plain.fit(config, data, settings)


if __name__ == "__main__":
    job = plain.read_job()
    with ProcessPoolExecutor(job["processes"], initializer=start, initargs=(job,)) as pool:
        plain.write(job, list(pool.map(fit, plain.list_configs(job))))
