"""Checks that a setting is of the type its declaration asks for."""

from __future__ import annotations

import math
import numbers
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from immunis.core.errors import SettingsError, unknown


def fits(value: Any, hint: Any) -> bool:
    """Whether a value (as TOML or a caller gives it) is of a declared type.

    An integer passes as a float, a boolean never as a number.

    >>> fits(3, float), fits(True, int), fits([1, 2], Sequence[int]), fits(None, int | None)
    (True, False, True, True)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in inner)
    if origin is Literal:
        return value in inner
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, inner[0]) for item in value)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def check(values: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> None:
    """Refuse unknown keys, with a suggestion, and values of another type.

    Raises:
        SettingsError: naming the key, what came and what was expected.
    """
    for key, value in values.items():
        if key not in hints:
            raise unknown(f"setting of {where}", key, hints)
        if not fits(value, hints[key]) and get_origin(hints[key]) is Literal:
            raise unknown(f"{key} of {where}", str(value), get_args(hints[key]))
        if not fits(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key])).replace("typing.", "")
            if get_origin(hints[key]) is not None:
                wanted = str(hints[key]).replace("typing.", "").replace("collections.abc.", "")
            raise SettingsError(
                f"{where}: {key}={value!r} is of type {type(value).__name__}; expected {wanted}."
            )


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names under which two mappings hold different values, or of which one holds none.

    >>> differing({"rate": 1, "steps": 2}, {"rate": 1, "seed": 0})
    ['seed', 'steps']
    """
    return sorted(k for k in {*one, *other} if k not in one or k not in other or one[k] != other[k])


def whole(value: Any, name: str, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return a whole number (of Python or NumPy) as an int.

    Raises:
        SettingsError: for booleans, fractions, text, or a number out of range.

    >>> whole(3, "steps")
    3
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise SettingsError(f"{name}={value!r}: expected a whole number.")
    number = int(value)
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise SettingsError(f"{name}={number}: expected {bound}.")
    return number


def require(condition: bool, what: str) -> None:
    """Raise ``SettingsError(what)`` unless the condition holds; NaN comparisons do not."""
    if not condition:
        raise SettingsError(what)


def require_least(settings: object, least: float, *names: str, above: bool = False) -> None:
    """Raise ``SettingsError`` unless each named setting is None, or finite and at least ``least``.

    With ``above``, a setting must be greater than ``least``.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not (least <= value < math.inf and (value > least or not above)):
            sign = ">" if above else ">="
            raise SettingsError(f"{name}={value}: expected a finite number {sign} {least}")
