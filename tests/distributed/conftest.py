"""One Ray cluster of this machine for all tests of Ray."""

from collections.abc import Iterator

import pytest

from sp500.distributed import cluster


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Ray, stopped when the last test is done."""
    with cluster.connected():
        yield
