"""Check a record against the shape of its kind, and say where it does not fit."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, get_args, get_origin, is_typeddict

from immunis.core.errors import InputError
from immunis.core.settings import fits
from immunis.core.shapes import SHAPES, Data, Free

HEAD: dict[str, Any] = {
    "kind": str,
    "name": str,
    "seed": int | None,
    "seconds": float,
    "created": str,
    "versions": dict[str, str],
    "commit": str | None,
    "schema": int,
}
WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
SPECIAL = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
LARGEST = 2**63  # whole numbers beyond it do not fit the arithmetic of reports


def special(value: Any) -> Any:
    """Return JSON values with the strings for special floats turned back into floats."""
    if isinstance(value, dict):
        return {key: special(item) for key, item in value.items()}
    if isinstance(value, list):
        return [special(item) for item in value]
    return SPECIAL.get(value, value) if isinstance(value, str) else value


def shaped_record(values: dict[str, Any]) -> dict[str, Any]:
    """Return a record's JSON values with special floats restored.

    Raises:
        InputError: for a value that does not fit the shape of its kind, naming its path.
    """
    kind = str(values["kind"])
    if kind == "reproduce":
        kind += f" {values['name']}"
        if kind not in SHAPES:
            raise InputError(f"name is {values['name']!r}; expected 'house-prices' or 'mnist'.")
    parts = SHAPES.get(kind, (Free, Free, Free))
    hints = {**HEAD, **dict(zip(("figures", "settings", "data"), parts, strict=True))}
    values = {"settings": {}, "data": {}, **values}
    found = {key: shaped(item, hints.get(key, Any), key) for key, item in values.items()}
    if parts[2] is not Free:
        shaped(values["data"], dict[str, Data], "data")  # those beyond the two that are required
    if wrong := next(_loose_ends(found["kind"], found["figures"], found["settings"]), None):
        raise InputError(wrong)
    return found


def shaped(value: Any, shape: Any, path: str) -> Any:
    """Return a JSON value with special floats restored, if it fits its shape.

    >>> from immunis.core.shapes import Interval
    >>> shaped({"mean": 1, "low": "?", "high": 2}, Interval, "score")
    Traceback (most recent call last):
    immunis.core.errors.InputError: score.low is '?'; expected a number.
    """
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any:
        return special(value)
    if origin is types.UnionType:
        return shaped(value, _branch(value, inner), path)
    if is_typeddict(shape) and isinstance(value, dict):
        hints = shape.__annotations__
        missing = next((k for k in hints if k in shape.__required_keys__ and k not in value), None)
        if missing is not None:
            raise InputError(f"{path}.{missing} is missing; expected {_words(hints[missing])}.")
        hints = {k: get_args(h)[0] if get_origin(h) is NotRequired else h for k, h in hints.items()}
        return {k: shaped(item, hints.get(k, Any), f"{path}.{k}") for k, item in value.items()}
    if origin is dict and isinstance(value, dict):
        return {key: shaped(item, inner[1], f"{path}.{key}") for key, item in value.items()}
    if origin is list and isinstance(value, list):
        return [shaped(item, inner[0], f"{path}.{i}") for i, item in enumerate(value)]
    if shape is float and isinstance(value, str):
        value = SPECIAL.get(value, value)
    small = not isinstance(value, int) or abs(value) <= LARGEST
    if origin in (dict, list) or is_typeddict(shape) or not (small and fits(value, shape)):
        raise InputError(f"{path} is {repr(value)[:40]}; expected {_words(shape)}.")
    return value


def _branch(value: Any, shapes: tuple[Any, ...]) -> Any:
    """Return the shape of a union that a value must fit; a ``Literal`` key tells them apart."""
    if value is None and type(None) in shapes:
        return type(None)
    for shape in shapes:
        keys = shape.__annotations__.items() if is_typeddict(shape) else ()
        names = {key: get_args(hint) for key, hint in keys if get_origin(hint) is Literal}
        if isinstance(value, dict) and all(value.get(key) in names[key] for key in names):
            return shape
    return shapes[0]


def _words(shape: Any) -> str:
    origin, inner = get_origin(shape), get_args(shape)
    if origin in (types.UnionType, NotRequired):
        return _words(inner[0])
    if origin is Literal:
        return " or ".join(map(repr, inner))
    return WORDS.get(shape, "a list" if origin is list else "an object")


def _loose_ends(kind: str, figures: Any, settings: Any) -> Iterator[str]:
    """Yield what is wrong between the parts of a record: names and lengths that do not agree."""
    if kind == "audit":
        if settings["original"] not in figures["models"]:
            yield f"settings.original is {settings['original']!r}, which figures.models lacks."
        for name, row in figures["models"].items():
            if name not in figures["worst_case"]:
                yield f"figures.worst_case.{name} is missing; expected an object."
            if len(row.get("per_class", figures["classes"])) != len(figures["classes"]):
                yield f"figures.models.{name}.per_class and figures.classes differ in length."
    if kind == "immunize" and "per_class" in figures:
        found = figures["per_class"]
        if {len(found["before"]), len(found["after"])} - {0, len(found["classes"])}:
            yield "figures.per_class holds lists of different lengths."
    if kind == "demo":
        steps = {str(step) for step in settings["steps"]}
        for name in (n for n in ("no defence", "frontier") if n not in figures["methods"]):
            yield f"figures.methods.{name} is missing; expected an object."
        for name, row in figures["methods"].items():
            if len(steps) != 3 or steps - row["harmful_accuracy"]["gradient_descent"].keys():
                yield f"figures.methods.{name} and settings.steps do not name the same steps."
            if _uneven(row["norm_ratio"], "steps", "primary", "harmful"):
                yield f"figures.methods.{name}.norm_ratio holds lists of different lengths."
    if kind == "reproduce" and "norm_ratio" in figures:
        yield from _in_rows(figures["rows"], "figures")
        for name, row in figures["norm_ratio"]["curves"].items():
            curve = {**row, "steps": figures["norm_ratio"]["steps"]}
            if _uneven(curve, "steps", "primary", "harmful"):
                yield f"figures.norm_ratio.curves.{name} and its steps differ in length."
        for name, row in figures["path"].items():
            if _uneven(row, "epochs", "released", "honest"):
                yield f"figures.path.{name} holds lists of different lengths."
    elif kind == "reproduce":
        for protocol, found in figures["protocols"].items():
            yield from _in_rows(found["rows"], f"figures.protocols.{protocol}")
            counted = {row["name"] for row in found["rows"] if "successes" in row}
            for name, maps in found["maps"].items():
                if {len(line) for cells in maps.values() for line in (cells, *cells)} != {10}:
                    yield f"figures.protocols.{protocol}.maps.{name} is not ten by ten."
                if name not in counted:
                    yield f"figures.protocols.{protocol}.rows lack the successes of {name}."


def _in_rows(rows: list[dict[str, Any]], path: str) -> Iterator[str]:
    """Yield the rows of a reproduction that hold one condition number without the other."""
    for i, row in enumerate(rows):
        if ("released" in row) != ("honest" in row):
            yield f"{path}.rows.{i} holds one of released and honest; expected both or none."


def _uneven(row: dict[str, Any], *keys: str) -> bool:
    return len({len(row[key]) for key in keys}) > 1
