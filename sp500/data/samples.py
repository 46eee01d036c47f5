"""A map-style dataset of torch as it is: training samples are read again in each epoch, in processes of their own.

Validation and test samples are read once, into memory. Before a sample is read, the generators of torch, NumPy and
Python are seeded from seed, epoch and its number, and put back afterwards: so it is the same for any number of workers
and of processes that read. Training targets are read once as well, since naive forecasts are made from them.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from sp500.config import RunConfig
from sp500.data.batches import Batch, order_of, rank_part
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.machine.disk import file_digest
from sp500.runs.results import DataCard
from sp500.seeding import derive, numpy_generator

Collate = Callable[[list[Any]], tuple[Tensor, Tensor]]
TWICE, DRAWN = 8, 64
"""Samples that are read twice, and whose hash is the default identity of the data."""
AT_ONCE = 64
UNKNOWN = "identity of the data not known: the hash is of the first, the last and 64 drawn training samples"


@dataclass(frozen=True)
class Samples(Windows):
    """Training windows of one row that are read when they are needed. `rows` repeats the first one.

    Its memory is that of one sample, also after it was sent to a worker.
    """

    source: Any = None
    collate: Collate | None = None
    seed: int = 0
    loaders: int = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to another process: of the rows, the one that there is."""
        return {**self.__dict__, "rows": np.array(self.rows[:1])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was sent."""
        rows = np.broadcast_to(state["rows"], (len(state["starts"]), *state["rows"].shape[1:]))
        self.__dict__.update({**state, "rows": rows})

    def read(
        self, batches: Iterable[Tensor], epoch: int, loaders: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield x [batch, 1, *row] and y of each batch of sample numbers. Raises DataError for unequal shapes."""
        keys = [[(epoch, number) for number in numbers.tolist()] for numbers in batches]
        processes = self.loaders if loaders is None else loaders
        # A generator of its own: the loader would draw from torch's, and shift what a model draws from it.
        loader = DataLoader(
            _Seeded(self.source, self.seed),
            batch_sampler=keys,
            collate_fn=self.collate or _stack,
            num_workers=processes,
            generator=torch.Generator(),
        )
        for x, y in loader:
            if x.shape[1:] != self.rows.shape[1:]:
                raise DataError(
                    f"{_name(self.source)}: samples {list(x.shape[1:])} and {list(self.rows.shape[1:])} differ in "
                    "shape; let collate pad all to one"
                )
            yield _typed(x, self.rows.dtype)[:, None], _typed(y, self.targets.dtype)


class SampleBatches:
    """One rank's batches of samples that are read when they are needed."""

    def __init__(self, samples: Samples, device: torch.device, *, rank: int = 0, world: int = 1) -> None:
        self._samples, self._device, self._rank, self._world = samples, device, rank, world

    def __len__(self) -> int:
        return len(self._samples)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches per epoch, the same on every rank."""
        return math.ceil(len(self) / batch_size)

    def epoch(self, epoch: int, batch_size: int, *, shuffle: bool, seed: int) -> Iterator[Batch]:
        """Yield every sample once, in the order that windows in memory have."""
        wholes = order_of(len(self), epoch, shuffle=shuffle, seed=seed).split(batch_size)
        parts = [rank_part(whole, self._rank, self._world) for whole in wholes]
        read = self._samples.read([mine for mine, _, _ in parts], epoch)
        for whole, (mine, count, size), (x, y) in zip(wholes, parts, read, strict=True):
            numbers, targets = mine.to(self._device), len(whole) * y[0].numel()
            yield Batch(x.to(self._device), y.to(self._device), numbers, count, size, len(whole), targets, whole)

    def fetch(self, numbers: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return x and y of samples by their numbers, of any rank."""
        [(x, y)] = self._samples.read([numbers], epoch, loaders=0)
        return x.to(self._device), y.to(self._device)


def from_torch(
    train: Any,
    valid: Any | None,
    test: Any,
    *,
    config: RunConfig,
    identity: str | Sequence[Path] = "",
    outputs: int = 0,
    collate: Collate | None = None,
) -> Dataset:
    """Return the dataset of map-style datasets of torch, whose samples are (x, y).

    `identity` names the data: a text, or files whose hashes count. `outputs`: numbers that a model gives per target;
    default: the classes of whole targets, else 1. `collate` makes x [batch, ...] and y of a list of samples, all of one
    shape. Raises DataError for another kind of dataset, and for one that draws from a generator of its own.
    """
    parts = {name: part for name, part in (("train", train), ("valid", valid), ("test", test)) if part is not None}
    for name, part in parts.items():
        _check_kind(name, part)
    seed, loaders, dtype = config.train.seed, config.data.loaders, config.train.dtype
    samples = _open(train, collate, seed, loaders, dtype)
    _check_generators(samples)
    targets = np.concatenate([y.numpy() for _, y in _read_all(samples)])
    windows: dict[str, Windows] = {"train": replace(samples, targets=targets)}
    for name, part in parts.items():
        if name != "train":
            windows[name] = _load(_open(part, collate, seed, loaders, dtype))
    notes = [] if identity else [UNKNOWN]
    card: DataCard = {
        "source": identity if isinstance(identity, str) and identity else _name(train),
        "sha256": _identify(samples, identity),
        "windows": {name: len(part) for name, part in windows.items()},
        "notes": notes,
    }
    whole = targets.dtype.kind in "iu"
    count = outputs or (int(max(part.targets.max() for part in windows.values())) + 1 if whole else 1)
    return Dataset(windows["train"], windows.get("valid"), windows["test"], card=card, outputs=count)


class _Seeded(TorchDataset[Any]):
    """A dataset whose samples are read with generators that were seeded for epoch and number."""

    def __init__(self, source: Any, seed: int) -> None:
        self._source, self._seed = source, seed

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, number = key
        with seeded(derive(self._seed, "sample", epoch, number)):
            return self._source[number]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch, NumPy and Python, and put them back at the end."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def _check_kind(name: str, part: Any) -> None:
    if isinstance(part, IterableDataset) or not (hasattr(part, "__getitem__") and hasattr(part, "__len__")):
        raise DataError(
            f"from_torch: {name} is a {_name(part)} without numbered samples. Write __getitem__ and __len__"
        )
    if not len(part):
        raise DataError(f"from_torch: {name} has no samples")


def _open(source: Any, collate: Collate | None, seed: int, loaders: int, dtype: str) -> Samples:
    """Return a split of which the first sample has been read, with its target."""
    first = _Seeded(source, seed)[0, 0]
    if not (isinstance(first, tuple | list) and len(first) == 2):
        raise DataError(f"{_name(source)}: a sample is a {type(first).__name__}, expected (x, y)")
    try:
        x, y = (collate or _stack)([first])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{_name(source)}: samples cannot be stacked ({error}); return tensors, or give collate"
        ) from None
    row, target = _array(x, dtype), _array(y, dtype)
    rows = np.broadcast_to(row, (len(source), *row.shape[1:]))
    return Samples(rows, np.arange(len(source)), target, 1, None, source, collate, seed, loaders)


def _read_all(samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all samples in order, as they are read in epoch 0."""
    return samples.read(torch.arange(len(samples)).split(AT_ONCE), 0)


def _load(samples: Samples) -> Windows:
    """Return all samples of a split in memory."""
    x, y = zip(*_read_all(samples), strict=True)
    return Windows(torch.cat(x)[:, 0].numpy(), samples.starts, torch.cat(y).numpy(), 1)


def _check_generators(samples: Samples) -> None:
    """Read a few samples twice. Raises DataError for one that differs: no seed of ours reaches what it draws from."""
    chosen = torch.linspace(0, len(samples) - 1, min(TWICE, len(samples))).long()
    (first,), (second,) = (list(samples.read([chosen], 1, loaders=0)) for _ in range(2))
    for number, *pairs in zip(chosen.tolist(), *first, *second, strict=True):
        if not (torch.equal(pairs[0], pairs[2]) and torch.equal(pairs[1], pairs[3])):
            raise DataError(
                f"{_name(samples.source)}: sample {number} differs when it is read twice: it draws from a generator of "
                "its own. Draw from torch's, such as torch.rand(1), inside __getitem__"
            )


def _identify(samples: Samples, identity: str | Sequence[Path]) -> str:
    digest = hashlib.sha256(str(len(samples)).encode())
    if isinstance(identity, str) and identity:
        digest.update(identity.encode())
    elif identity:
        for path in identity:
            digest.update(file_digest(Path(path)).encode())
    else:
        drawn = numpy_generator(0, "identity").integers(len(samples), size=DRAWN)
        for x, y in samples.read([torch.tensor([0, len(samples) - 1, *drawn.tolist()])], 0, loaders=0):
            digest.update(x.contiguous().numpy().tobytes() + y.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _stack(samples: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = ([torch.as_tensor(each) for each in values] for values in zip(*samples, strict=True))
    if len(shapes := {tuple(each.shape) for each in x}) > 1:
        raise DataError(f"samples {min(shapes)} and {max(shapes)} differ in shape; let collate pad all to one")
    return torch.stack(x), torch.stack(y)


def _array(values: Tensor, dtype: str) -> np.ndarray:
    """Return an array of the run's number type, or of the tensor's own for whole numbers."""
    return values.numpy().astype(dtype if values.is_floating_point() else values.numpy().dtype)


def _typed(values: Tensor, dtype: np.dtype) -> Tensor:
    return values.to(torch.from_numpy(np.empty(0, dtype)).dtype)


def _name(source: object) -> str:
    return type(source).__name__
