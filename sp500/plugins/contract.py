"""Checks, by its signature, that a class or function of the user's can be a task or a model.

It is imported for that, so its file has to be admitted before. A wrong signature is refused with the line to write.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any

from sp500.errors import ConfigError
from sp500.plugins import source
from sp500.plugins.reference import Reference

REQUIRED = {
    "prepare": "def prepare(self, config: RunConfig) -> Dataset:",
    "loss": "def loss(self, output: Tensor, target: Tensor) -> Tensor:",
    "judge": "def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> dict:",
}
"""Methods that a task has to define, each as the line to write."""
OPTIONAL = {
    "model": "def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:",
    "kept": "def kept(self, output: Tensor, target: Tensor) -> Tensor:",
    "optimizer": "def optimizer(self, model: nn.Module, config: RunConfig) -> Optimizer:",
    "optimizers": "def optimizers(self, model: nn.Module, config: RunConfig) -> dict[str, Optimizer]:",
    "lr_factor": "def lr_factor(self, step: int, steps: int) -> float:",
    "step": "def step(self, trainer: Trainer, batch: Batch) -> Tensor:",
    "transform": ("def transform(self, x: Tensor, target: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:"),
    "mix": (
        "def mix(self, x: Tensor, target: Tensor, x2: Tensor, target2: Tensor, rng: np.random.Generator) -> "
        "tuple[Tensor, Tensor]:"
    ),
    "transform_batch": (
        "def transform_batch(self, x: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:"
    ),
    "measure": "def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Sums]:",
    "predictions": "def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:",
    "sample": "def sample(self, model: nn.Module, dataset: Dataset) -> str:",
    "excess_sharpe": (
        "def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:"
    ),
}
REPLACED = {
    "optimizer": ("optimizer", "optimizer_options", "weight_decay", "decay"),
    "optimizers": ("optimizer", "optimizer_options", "weight_decay", "decay"),
    "lr_factor": ("schedule", "warmup", "lr_end"),
}
"""Settings of `train` that a task does not use if it has such a method. It may read `config.lr`."""
OF_PRICES = {
    "features": "def features(self, prices: Prices) -> pd.DataFrame:",
    "target": "def target(self, prices: Prices, config: RunConfig) -> pd.DataFrame:",
}
"""What a task of prices may define."""
MODEL = {
    "__init__": "def __init__(self, config: ModelConfig, dataset: Dataset) -> None:",
    "forward": "def forward(self, x: Tensor) -> Tensor:",
}
ESTIMATOR = {"fit": "def fit(self, X, y):", "predict": "def predict(self, X):"}
FILES = {"save": "def save(self, folder):", "load": "def load(self, folder):"}
"""What an estimator defines, and what one does whose type is not of an installed package."""
SUGGESTER = {
    "__init__": "def __init__(self, axes: dict, seed: int) -> None:",
    "ask": "def ask(self, count: int) -> list[dict]:",
    "tell": "def tell(self, values: dict, score: float) -> None:",
}
PRICE_TASK = ("sp500.tasks.prices", "PriceTask")
TASK, MODULE = ("sp500.training.task", "Task"), ("torch.nn.modules.module", "Module")
"""Module and name of the classes that a task and a model inherit from."""
NEAR = 0.85
"""Similarity of two names (0 to 1) from which one counts as a misspelling of the other."""
PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def load_task(own: Reference) -> Any:
    """Return the user's task class. Raises ConfigError with the first thing that it lacks, and the line to add."""
    maker = source.load(own)
    where = f"{own.path.name}: class {own.name}"
    if not isinstance(maker, type):
        raise ConfigError(f"{own.path.name}: {own.name} is a {type(maker).__name__}; a task is a class")
    if not _find_base(maker, TASK):
        raise ConfigError(f"{where} does not inherit from sp500.Task; write 'class {own.name}(Task):'")
    for name in sorted(getattr(maker, "__abstractmethods__", ())):
        raise ConfigError(f"{where} has no method {name}; add '{REQUIRED.get(name, name)}'")
    of_prices = OF_PRICES if _find_base(maker, PRICE_TASK) else {}
    called = REQUIRED | OPTIONAL | of_prices
    _check_names(maker, called, where)
    for name, line in called.items():
        if callable(method := getattr(maker, name, None)):
            static = isinstance(inspect.getattr_static(maker, name), staticmethod | classmethod)
            expected = [*([] if static else ["self"]), *re.findall(r"(\w+): ", line)]
            _check_takes(method, expected, f"{where}: {name}", f"write '{line}'")
    start = f"{where}: __init__"
    _check_takes(maker, ["config"], start, "a task is made with its RunConfig or with nothing", least=0)
    return maker


def _check_names(maker: type, called: Collection[str], where: str) -> None:
    """Raise ConfigError for a method that sp500 does not call and whose name is nearly that of one that it calls."""
    inherited = {name for base in maker.__mro__[1:] for name in vars(base)}
    for name, value in vars(maker).items():
        if name.startswith("_") or name in inherited or name in called or not callable(value):
            continue
        if near := difflib.get_close_matches(name, called, n=1, cutoff=NEAR):
            raise ConfigError(
                f"{where}: {name} is not a method that sp500 calls; did you mean {near[0]}? "
                "Begin the name of a helper with _"
            )


def load_model(own: Reference, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what makes a model of the user's. Raises ConfigError if these options do not fit it."""
    maker: Callable[..., Any] = source.load(own)
    where = f"{own.path.name}: {own.name}"
    if isinstance(maker, type):
        _check_module(maker, where)
    way_out = f"a model is made by {own.name}(config, dataset, ...), with its options by name"
    _check_takes(maker, ["config", "dataset"], where, way_out, named=options)
    parameters = _parameters(maker).values()
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        _check_options(own, [parameter.name for parameter in parameters][2:], options)
    return maker


def load_suggester(own: Reference) -> Callable[..., Any]:
    """Return the user's class of suggesters. Raises ConfigError with what it lacks, and the line to add."""
    maker: Callable[..., Any] = source.load(own)
    where = f"{own.path.name}: class {own.name}"
    for name, line in SUGGESTER.items():
        method = maker if name == "__init__" else getattr(maker, name, None)
        if not callable(method):
            raise ConfigError(f"{where} has no method {name}; add '{line}'")
        expected = [*([] if method is maker else ["self"]), *re.findall(r"(\w+): ", line)]
        _check_takes(method, expected, f"{where}: {name}", f"write '{line}'")
    at_once = getattr(maker, "at_once", 1)
    if not isinstance(at_once, int) or isinstance(at_once, bool) or at_once < 1:
        raise ConfigError(f"{where}: at_once is {at_once!r}; write a whole number of at least 1")
    return maker


def check_judge(task: object, own: Reference, built_in: Container[str]) -> None:
    """Raise ConfigError for a task, or its class, with a loss of its own and the judge of a task among `built_in`."""
    loss, judge = (_find_class(getattr(task, name)) for name in ("loss", "judge"))
    if judge != loss and judge in built_in:
        base = judge.rpartition(":")[2]
        raise ConfigError(
            f"{own.path.name}: class {own.name} has a loss of its own and inherits judge from {base}, which compares by"
            f" another: its verdict would be wrong. Add '{REQUIRED['judge']}', which may return super().judge(outputs, "
            "dataset) if that is meant"
        )


def check_named_loss(task: object, own: Reference, name: str) -> None:
    """Raise ConfigError for a task, or its class, that is not trained by the loss that `train.loss` names."""
    if _find_class(task.loss) != ":".join(PRICE_TASK):  # type: ignore[attr-defined] # every task has one
        raise ConfigError(
            f"train.loss {name} is not used by {own.path.name}: class {own.name} has a loss of its own; leave it out, "
            "or inherit the loss of sp500.PriceTask"
        )


def check_unused(task: object, own: Reference, changed: Collection[str]) -> None:
    """Raise ConfigError for a changed setting of `train` that a task, or its class, has a method in place of."""
    for method, keys in REPLACED.items():
        written = getattr(task, method, None)
        unused = next((key for key in keys if key in changed), None)
        if unused and written is not None and _find_class(written) != ":".join(TASK):
            raise ConfigError(
                f"train.{unused} is not used by {own.path.name}: class {own.name} has its own {method}; leave it out"
            )


def _find_base(maker: type, base: tuple[str, str]) -> type | None:
    return next((of for of in maker.__mro__ if (of.__module__, of.__name__) == base), None)


def is_estimator(model: object) -> bool:
    """Return whether a model, or its class, is an estimator and not a network."""
    of = model if isinstance(model, type) else type(model)
    return not _find_base(of, MODULE) and all(callable(getattr(of, name, None)) for name in ESTIMATOR)


def _check_module(maker: type, where: str) -> None:
    base = _find_base(maker, MODULE)
    if is_estimator(maker):
        for name, line in FILES.items():
            if not callable(getattr(maker, name, None)):
                raise ConfigError(f"{where} is an estimator of your own and has no method {name}; add '{line}'")
        return
    if base is None:
        raise ConfigError(
            f"{where} is a class that does not inherit from torch.nn.Module, and has no fit and predict as an estimator"
        )
    for name, line in MODEL.items():
        if getattr(maker, name) is getattr(base, name):
            raise ConfigError(f"{where} has no method {name}; add '{line}'")


def _find_class(method: Callable[..., object]) -> str:
    """Return module and class that a method was written in, as module:NAME."""
    function = getattr(method, "__func__", method)
    place = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    return f"{getattr(function, '__module__', '')}:{place}"


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a call; none if Python does not know them."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def _check_takes(
    function: Callable[..., Any],
    expected: list[str],
    where: str,
    way_out: str,
    *,
    least: int | None = None,
    named: Mapping[str, Any] | None = None,
) -> None:
    """Raise ConfigError unless the function can be called with as many arguments (or with `least`) by place."""
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{where} is async, and is called as a plain function; {way_out}")
    parameters = list(_parameters(function).values())
    placed = [parameter.name for parameter in parameters if parameter.kind in PLACED]
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    missing = [
        parameter.name
        for parameter in required
        if parameter.name in placed[len(expected) :] and parameter.name not in (named or {})
    ]
    swapped = placed[: len(expected)] != expected and sorted(placed[: len(expected)]) == sorted(expected)
    any_number = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    fewest = len(expected) if least is None else least
    if not (any_number or len(placed) >= fewest) or swapped or missing:
        raise ConfigError(f"{where} takes ({', '.join(placed)}), not ({', '.join(expected)}); {way_out}")
    for parameter in required:
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.name in (named or {}):
            continue
        if named is None:
            raise ConfigError(f"{where} requires {parameter.name}= by name, which sp500 does not pass; {way_out}")
        raise ConfigError(f"{where} requires {parameter.name}; set it with --model.options.{parameter.name} VALUE")


def _check_options(own: Reference, names: list[str], options: Mapping[str, Any]) -> None:
    for option in options:
        if option not in names:
            near = difflib.get_close_matches(option, names, n=1)
            known = f"did you mean {near[0]}?" if near else f"its options: {', '.join(names) or 'none'}"
            raise ConfigError(f"{own.path.name}: model {own.name} has no option {option}; {known}")
