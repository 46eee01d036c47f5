"""What is asked of clusters that lack workers, in a process of its own."""

from sp500.distributed import capacity, preflight
from sp500.errors import ResourcesError

STORE = 90 * 2**20
FOUR = {"replicas": 2, "maxReplicas": 4, "CPU": 1, "GPU": 0}
"""A manifest's word of its workers."""


def refusal(workers: int) -> str:
    """What is said to a request of that many workers; the nodes that came, where it is granted."""
    try:
        preflight.worker_share(workers, gpu=False)
    except ResourcesError as error:
        return str(error)
    return f"granted on {capacity.resources()['nodes']:g} nodes"
