"""Settings of images."""

from __future__ import annotations

from sp500.config.frozen import AgentFiles, Frozen, setting


class ImagesConfig(Frozen):
    """Which images."""

    source: str = setting("digits", agents=AgentFiles(frozenset({".npz"}), frozenset({"digits"})))
    """digits (bundled with scikit-learn) | FILE.npz | folder of IDX files | folder with one folder per class."""
    shift: int = setting(0, ge=0, le=16, agents=True)
    """Pixels by which a training image may be moved each way."""
