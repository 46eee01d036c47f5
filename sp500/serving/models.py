"""The models that answer. A new one is loaded next to the old one, checked, and then swapped in.

A reader reads one `Choice` and keeps it for its request, so that no answer is made of two versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sp500.errors import ConfigError, SP500Error, attempt
from sp500.formatting import reference_name
from sp500.serving.answers import FOLDER as ANSWERS
from sp500.serving.answers import AnswerLog
from sp500.serving.predictor import Predictor
from sp500.serving.registry import DEFAULT, Registry, Version

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0


@dataclass(frozen=True)
class Served:
    """One run that answers, and as which version of the model."""

    predictor: Predictor
    run: str
    version: str
    role: str = "champion"


@dataclass(frozen=True)
class Choice:
    """Models that answer now.

    `refused` is the reason that the registry's latest state was not loaded, if it was not.
    """

    champion: Served | None = None
    canary: Served | None = None
    share: float = 0.0
    shadow: Served | None = None
    refused: str = ""

    def pick(self, request_id: str) -> Served | None:
        """Return the model for a request: the same for the same id, whatever process answers."""
        part = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big") / 2**64
        return self.canary if self.canary and part < self.share else self.champion


def interface(predictor: Predictor) -> str:
    """Return a hash of what a request to this run must hold: models with one hash can replace each other."""
    recipe = predictor.recipe
    names: list[object] = [recipe.state.get("features"), recipe.state.get("horizon")]
    if own := recipe.state.get("columns"):
        names.append(own)
    # The name alone of a task of the user's own: each run has its own copy of the file, and folders move.
    parts = [reference_name(predictor.config.task), recipe.window, recipe.row, recipe.row_dtype, recipe.outputs, *names]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def open_model(runs: Path, name: str, *, trust_source: bool = False) -> tuple[OneRun | Registered, AnswerLog | None]:
    """Return the model of that name and the log of its answers; or else the run, whose answers are not logged.

    Raises SP500Error for a run that cannot answer, and ConfigError if there is neither.
    """
    registry = Registry(runs)
    if name in registry.names() or not (runs / name).is_dir():
        if name != DEFAULT and name not in registry.names():
            known = ", ".join(registry.names()) or "none"
            raise ConfigError(f"{name}: no run in {runs}, and no model (models: {known}); see sp500 models promote")
        log_of = AnswerLog(registry.folder / ANSWERS / name)
        return Registered(registry, name, trust_source=trust_source), log_of
    return OneRun(runs / name, trust_source=trust_source), None


class OneRun:
    """A run by its folder, which no promotion changes."""

    def __init__(self, folder: Path, *, trust_source: bool = False) -> None:
        self.name = folder.name
        predictor = Predictor(folder, trust_source=trust_source)
        self.choice = Choice(Served(predictor, folder.name, predictor.recipe.weights_sha256[:12]))

    @property
    def description(self) -> str:
        """The model that answers, in words."""
        return f"run {self.name}"

    def refresh(self) -> None:
        """Do nothing: there is nothing to follow."""


class Registered:
    """A model of the registry, followed while it is served."""

    def __init__(self, registry: Registry, name: str, *, trust_source: bool = False) -> None:
        self.name = name
        self.choice = Choice()
        self._registry = registry
        self._trust = trust_source
        self._loaded: dict[int, Predictor] = {}
        self._changing = threading.Lock()
        self.refresh()

    @property
    def description(self) -> str:
        """The model that answers, in words."""
        champion = self.choice.champion
        return f"model {self.name}" + (f", run {champion.run}" if champion else ", for which no run is promoted yet")

    def refresh(self) -> None:
        """Load the registry's state. What cannot be loaded is in `choice.refused`, and the model before it stays."""
        with self._changing:
            before = self.choice
            self.choice = attempt(self._load_choice, partial(_refuse, before))
            if (new := self.choice.champion) and before.champion and new.version != before.champion.version:
                log.warning("model %s: run %s answers from now on, version %s", self.name, new.run, new.version)
            if self.choice.refused and self.choice.refused != before.refused:
                log.warning("model %s keeps its present state: %s", self.name, self.choice.refused)

    def _load_choice(self) -> Choice:
        model, refused = self._registry.read(self.name), list[str]()
        if self.choice.champion and not model.champion:
            raise SP500Error(f"{self._registry.folder}: model {self.name} is gone")
        champion = self._load_version(model.champion, "champion") if model.champion else None
        canary = self._candidate(model.version(model.canary.version), "canary", refused) if model.canary else None
        shadow = self._candidate(model.version(model.shadow), "shadow", refused) if model.shadow else None
        used = {int(served.version) for served in (champion, canary, shadow) if served}
        used |= set(model.champions[-2:-1])  # a rollback is a swap
        self._loaded = {number: predictor for number, predictor in self._loaded.items() if number in used}
        return Choice(champion, canary, model.canary.share if model.canary else 0.0, shadow, "; ".join(refused))

    def _candidate(self, version: Version, role: str, refused: list[str]) -> Served | None:
        """Return a canary or a shadow. What is wrong with it must not keep the champion from answering."""
        return attempt(lambda: self._load_version(version, role), lambda error: refused.append(f"{role}: {error}"))

    def _load_version(self, version: Version, role: str) -> Served:
        number = version.version
        if number not in self._loaded:
            folder = self._registry.runs / version.run
            predictor = Predictor(folder, trust_source=self._trust)
            if predictor.recipe.weights_sha256 != version.weights_sha256:
                raise SP500Error(f"{folder}: has other weights than when version {number} was promoted")
            self._loaded[number] = predictor
        return Served(self._loaded[number], version.run, str(number), role)


def _refuse(before: Choice, error: Exception) -> Choice:
    """Return the choice before a new one that cannot be loaded, with the reason."""
    reason = str(error) if isinstance(error, SP500Error) else f"{type(error).__name__}: {error}"
    return replace(before, refused=reason)
