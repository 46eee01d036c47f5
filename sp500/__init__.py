"""The same experiment on a laptop and on a Ray cluster, and what the cluster bought.

    import sp500

    result = sp500.train(model="linear", epochs=3, name="linear")

`train`, `search`, `scale` and `walk_forward` are the experiments as functions; see docs/api.md. `Task`, `PriceTask`,
`Dataset`, `Windows` and `Dropout` are what a task or a model of your own is made of; see docs/your-own.md. `Predictor`
is a trained run that answers, and `serve` has it answer over HTTP. All are imported when they are first used, so
`import sp500` loads neither torch nor Ray.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sp500.version import __version__ as __version__

if TYPE_CHECKING:
    from sp500 import errors
    from sp500.api import compare, load_run, load_runs, scale, search, train, tune, walk_forward
    from sp500.config import ModelConfig, RunConfig
    from sp500.data.samples import from_torch
    from sp500.data.windows import Dataset, Windows
    from sp500.errors import DataError
    from sp500.models.dropout import Dropout
    from sp500.serving.background import serve
    from sp500.serving.predictor import Predictor
    from sp500.studies.result import Result
    from sp500.tasks.prices import PriceTask
    from sp500.training.task import Sums, Task

__all__ = [
    "DataError",
    "Dataset",
    "Dropout",
    "ModelConfig",
    "Predictor",
    "PriceTask",
    "RunConfig",
    "Sums",
    "Task",
    "Windows",
]
__all__ += [
    "Result",
    "compare",
    "errors",
    "from_torch",
    "load_run",
    "load_runs",
    "scale",
    "search",
    "serve",
    "train",
    "tune",
    "walk_forward",
]
_PLACES = {
    "config": ("ModelConfig", "RunConfig"),
    "data.samples": ("from_torch",),
    "data.windows": ("Dataset", "Windows"),
    "errors": ("DataError",),
    "models.dropout": ("Dropout",),
    "serving.background": ("serve",),
    "serving.predictor": ("Predictor",),
    "tasks.prices": ("PriceTask",),
    "api": ("compare", "load_run", "load_runs", "scale", "search", "train", "tune", "walk_forward"),
    "studies.result": ("Result",),
    "training.task": ("Sums", "Task"),
}


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"sp500.{place}"), name)
    if name == "errors":
        return import_module("sp500.errors")
    raise AttributeError(f"module 'sp500' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
