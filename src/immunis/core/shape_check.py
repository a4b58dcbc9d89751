"""Hold a loaded record to the shape of its kind; an error names the path of what does not fit."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, get_args, get_origin, is_typeddict

from immunis.core.errors import InputError
from immunis.core.kinds import PARALLEL, SHAPES
from immunis.core.settings import fits
from immunis.core.shapes import Data, Free

HEAD: Free = {"kind": str, "name": str, "created": str, "schema": int, "seconds": float}
HEAD |= {"seed": int | None, "commit": str | None, "versions": dict[str, str]}
WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
SPECIAL = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
COMMIT = r"[0-9a-f]{7,64}\+?"  # the plus: the tree was changed
LARGEST = 2**63  # whole numbers beyond it do not fit the arithmetic of reports


def special(value: Any) -> Any:
    """Return JSON values with the strings for special floats turned back into floats."""
    if isinstance(value, dict):
        return {key: special(item) for key, item in value.items()}
    if isinstance(value, list):
        return [special(item) for item in value]
    return SPECIAL.get(value, value) if isinstance(value, str) else value


def shaped_record(values: Free) -> Free:
    """Return a record's JSON values with special floats restored.

    Raises:
        InputError: for a value that does not fit the shape of its kind, naming its path.
    """
    kind = str(values["kind"])
    if kind == "reproduce":
        kind += f" {values['name']}"
        if kind not in SHAPES:
            raise InputError(
                f"name is {values['name']!r}; expected 'house-prices', 'mnist' or 'deep'."
            )
    figures, settings, data = SHAPES.get(kind, (Free, Free, Free))
    hints = {**HEAD, "figures": figures, "settings": settings, "data": data}
    values = {"settings": {}, "data": {}, **values}
    found = {key: shaped(item, hints.get(key, Any), key) for key, item in values.items()}
    if (commit := found.get("commit")) is not None and not re.fullmatch(COMMIT, commit):
        raise InputError(f"commit is {commit[:40]!r}; expected the hash of a commit.")
    if data is not Free:
        shaped(values["data"], dict[str, Data], "data")  # those beyond the two that are required
    if wrong := next(_loose_ends(kind, found["figures"], found["settings"]), None):
        raise InputError(wrong)
    return found


def shaped(value: Any, shape: Any, path: str) -> Any:
    """Return a JSON value with special floats restored, if it fits its shape.

    >>> shaped({"low": "?"}, {"low": float}, "score")
    Traceback (most recent call last):
    immunis.core.errors.InputError: score.low is '?'; expected a number.
    """
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any:
        _check_sizes(value, path)
        return special(value)
    if origin is types.UnionType:
        if value is None and type(None) in inner:
            return None
        status = value.get("status") if isinstance(value, dict) else None
        hints = {part: getattr(part, "__annotations__", {}).get("status") for part in inner}
        named = (part for part, hint in hints.items() if status in get_args(hint))
        return shaped(value, next(named, inner[0]), path)
    keys = _keys(shape)
    if keys and isinstance(value, dict):
        for key, hint in keys.items():
            if key not in value and key[-1] not in "?*":
                raise InputError(f"{path}.{key} is missing; expected {_words(hint)}.")
        if "released?" in keys and ("released" in value) != ("honest" in value):
            raise InputError(f"{path} holds one of released and honest; expected both or none.")
        hints = {k: keys.get(k, keys.get(f"{k}?", keys.get("*", Any))) for k in value}
        found = {k: shaped(item, hints[k], f"{path}.{k}") for k, item in value.items()}
        if shape in PARALLEL and len({len(found[key]) for key in keys}) > 1:
            raise InputError(f"{path} holds lists of different lengths.")
        return found
    items = shape if isinstance(shape, list) else inner if origin is list else ()
    if items and isinstance(value, list):
        return [shaped(item, items[0], f"{path}.{i}") for i, item in enumerate(value)]
    if shape is float and isinstance(value, str):
        value = SPECIAL.get(value, value)
    small = not isinstance(value, int) or abs(value) <= LARGEST
    if keys or items or not (small and fits(value, shape)):
        raise InputError(f"{path} is {repr(value)[:40]}; expected {_words(shape)}.")
    return value


def _check_sizes(value: Any, path: str) -> None:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_sizes(item, f"{path}.{key}")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise InputError(f"{path} is {repr(value)[:40]}; expected at most {LARGEST}.")


def _keys(shape: Any) -> Free:
    """Return the shapes by key of a shape that is an object; "?" ends a key that may be missing."""
    if is_typeddict(shape):
        hints = shape.__annotations__.items()
        plain = {k: get_args(h)[0] if get_origin(h) is NotRequired else h for k, h in hints}
        return {k if k in shape.__required_keys__ else f"{k}?": h for k, h in plain.items()}
    if get_origin(shape) is dict:
        return {"*": get_args(shape)[1]}
    return shape if isinstance(shape, dict) else {}


def _words(shape: Any) -> str:
    origin, inner = get_origin(shape), get_args(shape)
    if origin is types.UnionType:
        return _words(inner[0])
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is list or isinstance(shape, list):
        return "a list"
    return "an object" if _keys(shape) else WORDS.get(shape, "nothing")


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
    elif kind == "immunize" and "per_class" in figures:
        found = figures["per_class"]
        if {len(found["before"]), len(found["after"])} - {0, len(found["classes"])}:
            yield "figures.per_class holds lists of different lengths."
    elif kind == "demo":
        steps = {str(step) for step in settings["steps"]}
        for name in sorted({"no defence", "frontier"} - figures["methods"].keys()):
            yield f"figures.methods.{name} is missing; expected an object."
        for name, row in figures["methods"].items():
            if len(steps) != 3 or steps - row["harmful_accuracy"]["gradient_descent"].keys():
                yield f"figures.methods.{name} and settings.steps do not name the same steps."
    elif kind == "reproduce house-prices":
        steps = figures["norm_ratio"]["steps"]
        for name, row in figures["norm_ratio"]["curves"].items():
            if {len(row["primary"]), len(row["harmful"])} != {len(steps)}:
                yield f"figures.norm_ratio.curves.{name} and its steps differ in length."
    elif kind == "reproduce mnist":
        for protocol, found in figures["protocols"].items():
            counted = {row["method"] for row in found["rows"] if "successes" in row}
            for name, maps in found["maps"].items():
                if {len(line) for cells in maps.values() for line in (cells, *cells)} != {10}:
                    yield f"figures.protocols.{protocol}.maps.{name} is not ten by ten."
                if name not in counted:
                    yield f"figures.protocols.{protocol}.rows lack the successes of {name}."
