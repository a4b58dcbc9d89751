"""Checks that a setting has the type and the range that its declaration asks for."""

from __future__ import annotations

import math
import numbers
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from immunis.core.errors import SettingsError, unknown

T = TypeVar("T")
# What counts that cost time or memory may be at most, wherever they are given.
MOST: dict[str, int] = {"seeds": 1000, "variants": 1000, "originals": 1000, "trials": 10**5}
MOST |= {"budget": 10**7, "workers": 1000}
MOST |= {"steps": 10**8, "epochs": 10**6, "harmful_epochs": 10**6, "evaluate": 10**5}
MOST |= {"devices": 1000, "nodes": 1000, "patience": 10**5}
MOST |= {"batch_size": 10**7, "inner_steps": 1000}
MOST |= {"batch": 10**7, "harmful_batch": 10**7, "accumulate": 10**5, "size": 4096}


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value, as TOML or a caller gives it, has a declared type.

    An integer passes as a float. A boolean never passes as a number.

    >>> fits(3, float), fits(True, int), fits([1, 2], Sequence[int]), fits(None, int | None)
    (True, False, True, True)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in inner)
    if origin is Literal:
        return value in inner
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, inner[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def check(values: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> None:
    """Raise ``SettingsError`` for an unknown key, with a suggestion, or a value of another type."""
    for key, value in values.items():
        if key not in hints:
            raise unknown(f"setting of {where}", key, hints)
        hint = hints[key]
        if fits(value, hint):
            if hint is not float:
                _require_count(key, value)
            continue
        if get_origin(hint) is Literal:
            raise unknown(f"{key} of {where}", str(value), get_args(hint))
        wanted = hint.__name__ if isinstance(hint, type) else str(hint)
        wanted = re.sub(r"\b(typing|collections\.abc)\.", "", wanted)
        raise SettingsError(
            f"{where}: {key}={value!r} is of type {type(value).__name__}; expected {wanted}."
        )


def build(kind: type[T], given: T | Mapping[str, Any], where: str) -> T:
    """Return settings as they are, or make them of a mapping after checking its keys and types."""
    if isinstance(given, kind):
        return given
    assert isinstance(given, Mapping)
    check(given, get_type_hints(kind), where)
    return kind(**given)


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names whose values differ, or that only one of two mappings has.

    >>> differing({"rate": 1, "steps": 2}, {"rate": 1, "seed": 0})
    ['seed', 'steps']
    """
    return sorted(k for k in {*one, *other} if k not in one or k not in other or one[k] != other[k])


def whole(value: Any, name: str, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return a whole number (of Python or NumPy) as an int, or raise ``SettingsError``.

    >>> whole(3, "steps")
    3
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise SettingsError(f"{name}={value!r}: expected a whole number.")
    number = int(value)
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most:,}"
        raise SettingsError(f"{name}={number}: expected {bound}.")
    _require_count(name, number)
    return number


def _require_count(name: str, value: Any) -> None:
    """Raise ``SettingsError`` for a count above what counts of this name may be (``MOST``)."""
    if name in MOST and isinstance(value, int):
        _require_most(name, value, MOST[name])


def _require_most(name: str, value: Any, most: float) -> None:
    if value is not None and value > most:
        raise SettingsError(f"{name}={value}: expected at most {most:,}.")


def require_most(settings: object, most: float, *names: str) -> None:
    """Raise ``SettingsError`` unless each named setting is None, or at most ``most``."""
    for name in names:
        _require_most(name, getattr(settings, name), most)


def require(condition: bool, what: str) -> None:
    """Raise ``SettingsError(what)`` unless the condition holds; NaN comparisons do not."""
    if not condition:
        raise SettingsError(what)


def require_score(value: float | None, name: str, kind: str | None = None) -> None:
    """Raise ``SettingsError`` for what no score is: above 1 or, of classes, below 0."""
    least = 0.0 if kind == "classification" else -1e100
    wanted = "a share from 0 to 1" if kind == "classification" else "a number of at most 1"
    told = f"{name}={value!r:.40}: expected {wanted}, as 0.7 for 70%, or an R²."
    require(value is None or least <= value <= 1, told)


def require_steps(seeds: int, budget: int) -> None:
    """Raise ``SettingsError`` if the runs of an attack may take above 10⁸ steps over all seeds."""
    require(
        seeds * budget <= MOST["steps"],
        f"seeds={seeds} times budget={budget}: expected at most {MOST['steps']:,} steps of an "
        "attack. Lower one of them, or divide the seeds among several audits.",
    )


def require_least(settings: object, least: float, *names: str, above: bool = False) -> None:
    """Raise ``SettingsError`` unless each named setting is None, or finite and at least ``least``.

    With ``above``, a setting must be greater than ``least``.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not (least <= value < math.inf and (value > least or not above)):
            sign = ">" if above else ">="
            raise SettingsError(f"{name}={value}: expected a finite number {sign} {least}.")
