"""Numbers, names and settings as the report writes them. A number that is not there is '-'."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NOTHING = "-"
TIMES, MINUS = "\u00d7", "\u2212"
MINUTE, HOUR, DAY = 60, 3600, 86400
MIB, GIB = 2**20, 2**30
LEAST_MONEY = 1e-6
LONGEST = 60
"""Characters of a setting."""
BUY_AND_HOLD = "buy-and-hold"
KEPT = "naive kept"
NAIVE = {
    "mean": "training mean",
    "zero": "zero return",
    "constant": "best constant",
    "majority": "majority class",
    "logistic": "logistic regression",
    "nearest": "nearest training image",
    "buy_and_hold": BUY_AND_HOLD,
}
METRIC = {
    "mse": "test MSE",
    "mae": "test MAE",
    "huber": "test Huber loss",
    "pinball": "test pinball loss",
    "loss": "test loss",
    "error_rate": "test error rate",
    "bits_per_byte": "test bits per byte",
}
STATUS = {"ok": "ok", "out_of_memory": "out of memory", "failed": "failed", "stopped": "stopped"}
ARM = {
    "in_memory": "in memory",
    "parallel": "several at once",
    "ray": "Ray",
    "solo": "one process",
    "sequential": "one after another",
    "elsewhere": "made elsewhere: gaps and leaks not checked",
}


def fixed(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return a number with so many decimals and a true minus."""
    if value is None:
        return NOTHING
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    # A rounded zero has no sign.
    return (text.lstrip("+-") if not float(text.replace(",", "")) else text).replace("-", MINUS)


def percent(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """Return a share in percent."""
    return NOTHING if value is None else f"{fixed(100 * value, digits, sign=sign)}%"


def interval(ends: Sequence[float] | None, digits: int = 2) -> str:
    """Return a 95% interval: '-0.31 to 1.15'."""
    return NOTHING if ends is None else f"{fixed(ends[0], digits)} to {fixed(ends[1], digits)}"


def seconds(value: float | None) -> str:
    """Return a duration, three digits at most."""
    if value is None:
        return NOTHING
    if value < 2 * MINUTE:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    if value < 2 * HOUR:
        return f"{value / MINUTE:.1f} min"
    return f"{value / HOUR:.1f} h" if value < 2 * DAY else f"{value / DAY:.1f} days"


def size(value: float | None) -> str:
    """Return bytes, three digits, in the units of a memory limit."""
    if value is None:
        return NOTHING
    if 0 < value < MIB:
        return f"{value / 1024:.0f} KiB"
    return f"{float(f'{value / GIB:.3g}'):,g} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def flatten(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return flat


def find_sizes(text: str) -> list[int]:
    """Return the sizes in a text, in bytes. Sizes in brackets are skipped: they repeat the one before."""
    units = {"bytes": 1, "KiB": 1024, "MiB": MIB, "GiB": GIB}
    pairs = re.findall(rf"(?<![(\d.,])(\d[\d.,]*) ({'|'.join(units)})\b", text)
    return [int(float(number.replace(",", "")) * units[unit]) for number, unit in pairs]


def approx(value: float) -> str:
    """Return a large number to three digits, as precise as a measurement can be trusted: 112,669 is 113,000."""
    return fixed(float(f"{value:.3g}"), 0)


def ratio(value: float | None) -> str:
    """Return how many times; two decimals below 10."""
    return NOTHING if value is None else f"{value:.{2 if value < 10 else 0}f}{TIMES}"


def money(value: float | None) -> str:
    """Return an amount without its currency: cents, and below one two significant digits."""
    if value is None or not value:
        return NOTHING if value is None else "0"
    if value < LEAST_MONEY:
        return f"<{fixed(LEAST_MONEY, 6)}"
    return fixed(value, 2 if value >= 1 else min(1 - math.floor(math.log10(value)), 6))


def amount(value: float, currency: str) -> str:
    """Return an amount with its currency: '12.50 USD', '0.0020 USD'."""
    return f"{money(value)} {currency}"


def gap(value: float | None) -> str:
    """Return an upper bound of one digit for a relative gap: 3.2e-9 is within 4e-9."""
    if not value:
        return NOTHING if value is None else "0"
    power = math.floor(math.log10(value))
    digit = math.ceil(round(value / 10.0**power, 6))
    return f"{digit}e{power}" if digit < 10 else f"1e{power + 1}"


def some(count: float, noun: str) -> str:
    """Return '1 model', '2 models', '0.5 CPUs'."""
    return f"{int(count) if count == int(count) else count:,} {noun}{'' if count == 1 else 's'}"


def name_command(verb: str, flags: str = "") -> str:
    """Return the command of an experiment, as a hint: of the kind that the user began this process with.

    `sp500 train` is there however the package was installed, `python experiments/train.py` in a clone only.
    """
    main = Path(getattr(sys.modules["__main__"], "__file__", None) or "sp500")
    script = main.with_name(f"{verb.replace('-', '_')}.py")
    command = (
        f"python experiments/{script.name}"
        if script.is_file() and main.parent.name == "experiments"
        else f"sp500 {verb}"
    )
    return f"{command} {flags}".strip()


def join(items: Sequence[str]) -> str:
    """Return 'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def arm(name: str) -> str:
    """Return an arm by its name in the report."""
    return ARM.get(name, name)


def outcome(status: str, reason: str = "") -> str:
    """Return how a run ended, and why."""
    word = STATUS.get(status, status)
    return f"{word}: {reason}" if reason else word


def config(overrides: Mapping[str, Any]) -> str:
    """Return a config in one line: 'hidden 64, lr 0.003'; numbers to four digits."""
    short = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in overrides.items()}
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {setting(value)}" for key, value in short.items())


def http_address(host: str, port: int) -> str:
    """Return an address for a browser: an IPv6 address has brackets there."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def reference_name(text: str) -> str:
    """Return the name in a reference such as FILE.py:NAME; any other text as it is."""
    return text.rpartition(":")[2]


def setting(value: Any) -> str:
    """Return a setting or a count as a user would type it, shortened; the parts of a list joined by a plus."""
    if isinstance(value, (list, tuple)):
        text = "+".join(map(setting, value))
    else:
        text = NOTHING if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return shorten(text)


def shorten(text: str) -> str:
    """Return a text without the middle if it is long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 + 1 :]}"


def against_naive(improvement: Mapping[str, Any] | None, best_epoch: int | None = None) -> str:
    """Return the side of zero on which the interval lies: better | worse | unclear; '-' without one.

    'naive kept' if the untrained model was the best: it is a naive forecast, and only rounding or another naive
    forecast lies between the two.
    """
    ends = bounds(improvement)
    if ends is None:
        return NOTHING
    if best_epoch == 0:
        return KEPT
    return "better" if ends[0] > 0 else "worse" if ends[1] < 0 else "unclear"


def bounds(improvement: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Return both ends of its interval; None without one."""
    if not improvement or improvement["low"] is None or improvement["high"] is None:
        return None
    return improvement["low"], improvement["high"]


def bounds_percent(improvement: Mapping[str, Any] | None) -> str:
    """Return the same in percent, without its sign: '-0.48 to +4.48'."""
    ends = bounds(improvement)
    return " to ".join(fixed(100 * end, 2, sign=True) for end in ends) if ends else NOTHING
