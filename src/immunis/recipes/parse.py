"""Recipes from TOML: every key is checked before anything is loaded or run."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_type_hints

from immunis.attacks import check_space, select
from immunis.core.controls import CONTROL, ORIGINAL, SCRATCH
from immunis.core.errors import InputError, SettingsError, unknown
from immunis.core.settings import check, fits
from immunis.methods import get_method
from immunis.models.zoo import LIBRARIES
from immunis.recipes.recipe import NETWORKS, SOURCES, TABLES, Recipe, training_for
from immunis.training.settings import training_of

FOLDER = Path(__file__).parent
MOST = 1 << 18  # bytes of a recipe
DEEP = re.compile(  # a key of so many parts that reading it would fill the memory
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}"""
)
PATHS = ("primary", "harmful", "attacker", "transfer", "folder", "weights", "checkpoint")
KINDS: dict[str, Any] = {
    "init": Literal["identity", "random"],
    "weights": str,
    "network": Sequence[int],
    **dict.fromkeys(LIBRARIES, str),
}
MODEL = {**KINDS, "pretrained": bool, "checkpoint": str, "options": dict, "head": str}
AUDIT = {
    "attacks": str | Sequence[str],
    "seeds": int,
    "budget": int,
    "trials": int,
    "methods": Sequence[dict],
    "space": dict,
}
RESERVED = (ORIGINAL, CONTROL, SCRATCH)
SECTIONS = {"name", "seed", *TABLES}


def bundled() -> dict[str, Path]:
    """Names and paths of the recipes that come with the package."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def load_recipe(reference: str | Path) -> Recipe:
    """Read and check a recipe: a path to a TOML file, or the name of a bundled one.

    Raises:
        InputError: if the file cannot be read.
        SettingsError: if it is not TOML, or names something unknown.
    """
    path = bundled().get(str(reference), Path(reference))
    if not path.suffix and not path.exists():
        raise unknown("recipe", str(reference), bundled())
    try:
        if path.stat().st_size > MOST:
            raise SettingsError(f"recipe {path} has over {MOST:,} bytes; no recipe needs them.")
        text = path.read_text(encoding="utf-8")
        if DEEP.search(text):
            raise SettingsError(f"recipe {path} is nested too deeply.")
        values = tomllib.loads(text)
    except SettingsError:
        raise
    except OSError as error:
        raise InputError(f"cannot read recipe {path}: {error.strerror}.") from error
    except ValueError as error:
        raise SettingsError(f"recipe {path} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise SettingsError(f"recipe {path} is nested too deeply.") from error
    return check_recipe(values, path)


def check_recipe(values: Mapping[str, Any], path: Path) -> Recipe:
    """Check every key of a recipe before anything is loaded or run."""
    for key in values:
        if key not in SECTIONS:
            raise unknown(f"key in recipe {path}", key, SECTIONS)
    for key in TABLES:
        if not isinstance(values.get(key, {}), Mapping):
            raise SettingsError(f"recipe {path}: [{key}] must be a table of settings.")
    data, method = dict(values.get("data", {})), dict(values.get("method", {}))
    if "source" not in data:
        raise SettingsError(
            f"recipe {path}: [data] needs a source, one of {', '.join(sorted(SOURCES))}."
        )
    if not isinstance(data["source"], str) or data["source"] not in SOURCES:
        raise unknown("data source", str(data["source"]), SOURCES)
    source = SOURCES[data["source"]]
    hints = {k: v for k, v in get_type_hints(source).items() if k != "return"}
    options = {k: v for k, v in data.items() if k != "source"}
    check(options, hints, f"data source {data['source']!r}")
    for name, parameter in inspect.signature(source).parameters.items():
        if parameter.default is parameter.empty and name not in data:
            raise SettingsError(f"recipe {path}: data source {data['source']!r} needs {name!r}.")
    training, pretrain = (
        dict(values[key]) if key in values else None for key in ("training", "pretrain")
    )
    for table in (training, pretrain):
        training_of(table or {})
    for key in ("mix", "harmful_held_out"):
        if pretrain is not None and pretrain.get(key):
            told = f"recipe {path}: {key} is for harmful rows, and [pretrain] has none."
            raise SettingsError(told)
    if method:
        _check_method(method, training, path)
    model = dict(values.get("model", {"init": "identity"}))
    check(model, MODEL, f"[model] of {path}")
    kinds = [key for key in model if key in KINDS]
    if len(kinds) != 1:
        raise SettingsError(f"recipe {path}: [model] takes one of {', '.join(KINDS)}.")
    extra = [key for key in model if key not in KINDS]
    if extra and kinds[0] not in LIBRARIES:
        raise SettingsError(f"recipe {path}: [model] {extra[0]} goes with {', '.join(LIBRARIES)}.")
    audit = _check_audit(dict(values.get("audit", {})), training, path)
    trained = [training_for(training, table) for table in (method, *audit.get("methods", ()))]
    if any(part is not None for part in (pretrain, *trained)) and kinds[0] not in NETWORKS:
        raise SettingsError(f"recipe {path}: training needs a network in [model].")
    if any(width < 1 for width in model.get("network", (1,))):
        raise SettingsError(f"recipe {path}: widths of the network must be at least 1.")
    for key in PATHS:
        _check_path(key, {**data, **model}.get(key), path)
    seed = values.get("seed", 0)
    for given in (seed, data.get("seed", 0)):
        if not fits(given, int) or not 0 <= given < 2**31:
            raise SettingsError(f"recipe {path}: seed={given!r}; expected 0 to 2**31 - 1.")
    name = values.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w+-][\w .+-]{0,99}", name):
        raise SettingsError(
            f"recipe {path}: name={name!r} is used for a folder; use at most 100 letters, digits, "
            "spaces and any of . _ + - (no leading dot)."
        )
    return Recipe(name, data, method, model, audit, pretrain, training, seed, path.parent)


def _check_path(key: str, given: Any, path: Path) -> None:
    """Refuse a path out of the recipe's folder or the data's: a recipe may come from anybody."""
    if isinstance(given, str) and (Path(given).is_absolute() or ".." in Path(given).parts):
        raise SettingsError(
            f"recipe {path}: {key}={given!r} leaves its folder. Use a path inside it; data that "
            "lies elsewhere is given with --data."
        )


def _check_method(table: Mapping[str, Any], training: Mapping[str, Any] | None, path: Path) -> None:
    settings = dict(table)
    label = settings.pop("label", "")
    if not isinstance(label, str) or label in RESERVED:
        raise SettingsError(
            f"recipe {path}: label={label!r} of a method; expected text other than "
            f"{', '.join(RESERVED)}, which name the audit's controls."
        )
    if not isinstance(settings.pop("training", {}), Mapping):
        raise SettingsError(f"recipe {path}: training of a method must be a table of settings.")
    own = training_for(training, table)
    training_of(own or {})
    get_method(settings.pop("name", "")).configure(settings, network=own is not None)


def _check_audit(
    audit: dict[str, Any], training: Mapping[str, Any] | None, path: Path
) -> dict[str, Any]:
    check(audit, AUDIT, f"[audit] of {path}")
    select(audit.get("attacks", "standard"))
    check_space(audit.get("space", {}))
    for key, values in audit.get("space", {}).items():
        if not isinstance(values, list) or not values:
            raise SettingsError(f"recipe {path}: [audit.space] {key} must be a list of values.")
    for key in ("seeds", "budget", "trials"):
        if audit.get(key, 1) < 1:
            raise SettingsError(f"recipe {path}: [audit] {key}={audit[key]}; need at least 1.")
    for table in audit.get("methods", ()):
        _check_method(table, training, path)
    return audit
