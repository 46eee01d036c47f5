"""The same experiment on a laptop and on a Ray cluster, and what the cluster bought.

    import sp500

    record = sp500.train(model={"kind": "linear"}, runs_dir="runs", name="linear")

`train`, `search`, `scale` and `walk_forward` are the experiments as functions; see docs/api.md. They are imported when
they are first used, so `import sp500` loads neither torch nor Ray.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sp500.studies.api import scale, search, train, walk_forward

__version__ = "0.1.0"
__all__ = ["scale", "search", "train", "walk_forward"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sp500' has no attribute {name!r}")
    from sp500.studies import api

    return getattr(api, name)
