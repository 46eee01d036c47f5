"""Optimisers by name: their options, and reasons why others of torch are not among them. No torch is imported here."""

from __future__ import annotations

from collections.abc import Mapping

Option = bool | float | tuple[float, float]
PAIR, NUMBER, FLAG = "two numbers, such as [0.9, 0.99]", "a number", "true or false"
_ADAM = {"betas": PAIR, "eps": NUMBER}

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "adamw": {**_ADAM, "amsgrad": FLAG},
    "adam": {**_ADAM, "amsgrad": FLAG, "decoupled_weight_decay": FLAG},
    "sgd": {"momentum": NUMBER, "dampening": NUMBER, "nesterov": FLAG},
    "rmsprop": {"alpha": NUMBER, "eps": NUMBER, "momentum": NUMBER, "centered": FLAG},
    "adagrad": {"lr_decay": NUMBER, "eps": NUMBER, "initial_accumulator_value": NUMBER},
    "nadam": {**_ADAM, "momentum_decay": NUMBER, "decoupled_weight_decay": FLAG},
    "radam": {**_ADAM, "decoupled_weight_decay": FLAG},
    "adamax": _ADAM,
    "adadelta": {"rho": NUMBER, "eps": NUMBER},
    "adafactor": {"beta2_decay": NUMBER, "eps": PAIR, "d": NUMBER},
}
"""Options of each optimiser, as torch names them, with what each is."""
OWN = "a task of your own may return it from `optimizer(self, model, config)`"
REFUSED = {
    "lbfgs": "it computes the loss several times in a step, and a step here computes it once; use "
    "--command for a program of your own",
    "sparseadam": "it is for sparse gradients, which are not averaged over workers",
    "asgd": "its averaged weights are not evaluated; use sgd with --train.ema",
    "rprop": f"it needs the gradient of the whole training set in each step; {OWN}",
    "muon": f"it is for matrices only, next to another optimiser; {OWN}",
}
"""Other optimisers of torch, with the reason that they cannot be named."""


def check(name: str, options: Mapping[str, object]) -> None:
    """Check that an optimiser can be named, and has these options. Raises ValueError."""
    if name not in OPTIONS:
        reason = REFUSED.get(name.lower(), f"{OWN[0].upper()}{OWN[1:]}")
        raise ValueError(
            f"train.optimizer {name}: expected one of {', '.join(OPTIONS)}. {reason[0].upper()}{reason[1:]}"
        )
    for key, value in options.items():
        if (kind := OPTIONS[name].get(key)) is None:
            hint = {"lr": "; set train.lr", "weight_decay": "; set train.weight_decay"}.get(key, "")
            listed = ", ".join(OPTIONS[name])
            raise ValueError(f"train.optimizer_options.{key} is not an option of {name}, which has {listed}{hint}")
        fits = {PAIR: isinstance(value, tuple), FLAG: isinstance(value, bool)}
        if not fits.get(kind, isinstance(value, float | int) and not isinstance(value, bool)):
            raise ValueError(f"train.optimizer_options.{key} {value!r}: expected {kind}")
    if options.get("nesterov") and not (options.get("momentum") and not options.get("dampening")):
        raise ValueError("train.optimizer_options.nesterov needs a momentum above 0 and a dampening of 0")
