"""Limits of what the queue may use and spend.

The file `queue.yaml` in the state folder, read again at every turn:

    capacity:
      local: {cpus: 8, gpus: 1, memory: 24GiB}     # default: this machine
      kuberay: {cpus: 64}                          # default: no limit, Kubernetes holds back what finds no node
    currency: USD
    budgets: {research: 12.50}                     # per project and day (UTC)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import psutil
from pydantic import BaseModel, ConfigDict, Field

from sp500.jobs.fields import Label, Memory
from sp500.jobs.resources import UNCOUNTED, Resources
from sp500.jobs.target import On, find
from sp500.machine.cores import usable_cores
from sp500.machine.system import NVIDIA_GPUS
from sp500.machine.units import size_bytes

FILE = "queue.yaml"
Amount = Annotated[float, Field(ge=0)]


class Capacity(BaseModel):
    """Resources that jobs may hold at once; what is left out is not limited, or is the machine's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cpus: Amount | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    memory: Memory | None = None


class QueueSettings(BaseModel):
    """Capacity by target, and budgets."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    capacity: dict[On, Capacity] = {}
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    """ISO 4217 code of the budgets' currency."""
    budgets: dict[Label, Amount] = {}
    """Money that a project may spend in a day (UTC); a project that is not listed has no limit."""

    def room(self, on: str, machine: Resources) -> Resources:
        """Return all that jobs of one target may hold together on this machine."""
        limits = self.capacity.get(on, Capacity())
        base = machine if find(on).is_here else UNCOUNTED
        return Resources(
            base.cpus if limits.cpus is None else limits.cpus,
            base.gpus if limits.gpus is None else min(limits.gpus, base.gpus),  # more than the driver has are nowhere
            base.memory if limits.memory is None else size_bytes(limits.memory),
        )


def machine(gpu_folder: Path = NVIDIA_GPUS) -> Resources:
    """Return this machine's resources: CPUs that this process may use, memory, and GPUs of NVIDIA's driver."""
    gpus = len(list(gpu_folder.iterdir())) if gpu_folder.is_dir() else 0
    return Resources(usable_cores(), gpus, psutil.virtual_memory().total)
