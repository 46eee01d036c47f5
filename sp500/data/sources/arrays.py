"""Windows prepared elsewhere: an npz file that enters the pipeline at windows.

The file holds X_train, y_train, X_test, y_test; X is [sample, window, feature]. The last part of X_train, in the order
given, becomes the validation set: a shuffle before that cut would let neighbouring windows leak into it.
"""

from __future__ import annotations

import hashlib
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from sp500.config import DataConfig
from sp500.data import normalize
from sp500.data.windows import Dataset, Windows, compute_naive_output
from sp500.errors import DataError
from sp500.runs.results import DataCard

# What a damaged file makes NumPy, zipfile and zlib raise.
DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    SyntaxError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
NAMES = ("X_train", "y_train", "X_test", "y_test")


def read(path: Path) -> dict[str, np.ndarray]:
    """Read and check the four arrays. Raises DataError that names the file and the array."""
    path = path.expanduser()
    arrays = _unpack(path)
    for part in ("train", "test"):
        x, y = arrays[f"X_{part}"], arrays[f"y_{part}"]
        if x.ndim != 3 or not x.size or y.ndim == 0 or not len(x) == len(y) == y.size:
            raise DataError(
                f"{path}: X_{part} {x.shape} and y_{part} {y.shape}: expected [sample, window, feature] and [sample]"
            )
        for name, values in ((f"X_{part}", x), (f"y_{part}", y)):
            if values.dtype.kind not in "biuf":
                raise DataError(f"{path}: {name} holds {values.dtype}, not numbers")
            if not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0][0])
                raise DataError(f"{path}: {name} row {row} holds a value that is not finite")
        arrays[f"y_{part}"] = y.reshape(-1)
    if arrays["X_train"].shape[1:] != arrays["X_test"].shape[1:]:
        raise DataError(f"{path}: X_train and X_test differ in window or features")
    return arrays


def _unpack(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise DataError(f"data.npz_path {path}: no such file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"data.npz_path {path} is not an npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in NAMES if name not in file]
            if missing:
                raise DataError(f"{path}: has no {', '.join(missing)}; expected {', '.join(NAMES)}")
            return {name: np.asarray(file[name]) for name in NAMES}
    except DAMAGE as error:
        raise DataError(f"data.npz_path {path} is not an npz file of plain arrays ({error})") from error


def is_direction(arrays: dict[str, np.ndarray]) -> bool:
    """Return whether the targets are only 0 and 1, which makes the task a classification."""
    return bool(np.isin(arrays["y_train"], (0, 1)).all() and np.isin(arrays["y_test"], (0, 1)).all())


def dataset(config: DataConfig, dtype: str, *, direction: bool) -> Dataset:
    """Return train, validation and test windows of `config.npz_path`, scaled by the training part."""
    assert config.npz_path is not None
    arrays = read(config.npz_path)
    if direction and not is_direction(arrays):
        raise DataError(
            f"{config.npz_path}: task direction needs y_train and y_test of 0 and 1 only, found "
            f"{np.unique(arrays['y_train'])[:3].tolist()}; of two classes write (y == y.max()).astype(int)"
        )
    count = len(arrays["X_train"])
    cut = count - int(count * config.valid_from_train)
    x, y = arrays["X_train"], arrays["y_train"]
    scaler = normalize.fit(x[:cut].reshape(-1, x.shape[2]).astype(np.float64), config.norm)
    deviation = float(y[:cut].astype(np.float64).std())
    scale = 1.0 if direction or config.norm == "none" or deviation == 0 else deviation

    def part(x: np.ndarray, y: np.ndarray) -> Windows:
        samples, length, features = x.shape
        return Windows(
            rows=scaler(x.reshape(samples * length, features)).astype(dtype),
            starts=np.arange(samples, dtype=np.int64) * length,
            targets=(y / scale).astype(dtype),
            length=length,
        )

    card: DataCard = {
        "source": str(config.npz_path),
        "sha256": _digest(arrays),
        "windows": {"train": cut, "valid": count - cut, "test": len(arrays["X_test"])},
        "features": [f"feature_{number}" for number in range(x.shape[2])],
        "tickers": [],
        "repairs": [],
        "notes": [] if direction else _note_classes(y),
    }
    valid = part(x[cut:], y[cut:]) if cut < count else None
    naive_output = compute_naive_output(y[:cut] / scale, direction=direction)
    test = part(arrays["X_test"], arrays["y_test"])
    return Dataset(part(x[:cut], y[:cut]), valid, test, scale, naive_output, card, state=scaler.state)


def _note_classes(y: np.ndarray) -> list[str]:
    """Return a note if targets of two values are treated as returns."""
    values = np.unique(y)
    if len(values) != 2:
        return []
    return [
        f"y_train has two values, {values[0]:g} and {values[1]:g}, used as returns; two classes are written as 0 and 1"
    ]


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in NAMES:
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
