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
from immunis.core.settings import check, require, whole
from immunis.methods import get_method
from immunis.models.zoo import LIBRARIES
from immunis.recipes.recipe import SOURCES, TABLES, Recipe
from immunis.training.settings import training_of

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
COUNTS = ("seeds", "budget", "trials")
AUDIT: dict[str, Any] = {"attacks": str | Sequence[str], "methods": Sequence[dict], "space": dict}
AUDIT |= dict.fromkeys(COUNTS, int)
RESERVED = (ORIGINAL, CONTROL, SCRATCH)
NAME = re.compile(r"[\w+-][\w .+-]{0,99}")


def bundled() -> dict[str, Path]:
    """Return the names and paths of the recipes that come with the package."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}


def load_recipe(reference: str | Path) -> Recipe:
    """Read and check a recipe: a path to a TOML file, or the name of a bundled one."""
    path = bundled().get(str(reference), Path(reference))
    if not path.suffix and not path.exists():
        raise unknown("recipe", str(reference), bundled())
    try:
        require(path.stat().st_size <= MOST, f"recipe {path} has over {MOST:,} bytes.")
        text = path.read_text(encoding="utf-8")
        require(not DEEP.search(text), f"recipe {path} is nested too deeply.")
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
    """Check every key of a recipe and return it; ``path`` is where its values come from."""
    where = f"recipe {path}"
    for key in values:
        if key not in {"name", "seed", *TABLES}:
            raise unknown(f"key in {where}", key, {"name", "seed", *TABLES})
    for key in TABLES:
        table = values.get(key, {})
        require(isinstance(table, Mapping), f"{where}: [{key}] must be a table of settings.")
    tables = {key: dict(values[key]) for key in TABLES if key in values}
    data, method = tables.get("data", {}), tables.get("method", {})
    training, pretrain = tables.get("training"), tables.get("pretrain")
    model, audit = tables.get("model", {"init": "identity"}), tables.get("audit", {})
    _check_data(data, where)
    for table in (training, pretrain):
        training_of(table or {})
    for key in ("mix", "harmful_held_out"):
        told = f"{where}: {key} is for harmful rows, and [pretrain] has none."
        require(not (pretrain or {}).get(key), told)
    check(model, MODEL, f"[model] of {path}")
    kinds = [key for key in model if key in KINDS]
    require(len(kinds) == 1, f"{where}: [model] takes one of {', '.join(KINDS)}.")
    for key in model.keys() - KINDS.keys():
        told = f"{where}: [model] {key} goes with {', '.join(LIBRARIES)}."
        require(kinds[0] in LIBRARIES, told)
    for width in model.get("network", ()):
        require(width >= 1, f"{where}: widths of the network must be at least 1.")
    _check_audit(audit, where)
    for key in PATHS:
        _check_path(key, {**data, **model}.get(key), where)
    seed, name = values.get("seed", 0), values.get("name", path.stem)
    for given in (seed, data.get("seed", 0)):
        whole(given, f"{where}: seed")
    told = f"{where}: name={name!r} names a folder; use at most 100 letters, digits, spaces and any"
    fits = isinstance(name, str) and NAME.fullmatch(name) is not None
    require(fits, f"{told} of . _ + - (no leading dot).")
    recipe = Recipe(name, data, method, model, audit, pretrain, training, seed, path.parent)
    methods = [*([method] if method else []), *audit.get("methods", ())]
    for table in methods:
        _check_method(table, recipe, where)
    trained = [pretrain, *(recipe.training_for(table) for table in ({}, *methods))]
    network = recipe.is_network or all(part is None for part in trained)
    require(network, f"{where}: training needs a network in [model].")
    return recipe


def _check_data(data: Mapping[str, Any], where: str) -> None:
    known = ", ".join(sorted(SOURCES))
    require("source" in data, f"{where}: [data] needs a source, one of {known}.")
    name = data["source"]
    if not isinstance(name, str) or name not in SOURCES:
        raise unknown("data source", str(name), SOURCES)
    hints = {"source": str, **get_type_hints(SOURCES[name])}
    del hints["return"]
    check(data, hints, f"data source {name!r}")
    for option, parameter in inspect.signature(SOURCES[name]).parameters.items():
        given = option in data or parameter.default is not parameter.empty
        require(given, f"{where}: data source {name!r} needs {option!r}.")


def _check_path(key: str, given: Any, where: str) -> None:
    """Raise ``SettingsError`` for a path out of its folder: a recipe may come from anybody."""
    if isinstance(given, str) and (Path(given).is_absolute() or ".." in Path(given).parts):
        told = f"{where}: {key}={given!r} leaves its folder. "
        raise SettingsError(f"{told}Use a path inside it, or give the folder of data with --data.")


def _check_method(table: Mapping[str, Any], recipe: Recipe, where: str) -> None:
    settings = dict(table)
    label = settings.pop("label", "")
    told = f"{where}: label={label!r} of a method; expected text other than {', '.join(RESERVED)}."
    require(isinstance(label, str) and label not in RESERVED, told)
    own = settings.pop("training", {})
    require(isinstance(own, Mapping), f"{where}: training of a method must be a table of settings.")
    training = recipe.training_for(table)
    training_of(training or {})
    get_method(settings.pop("name", "")).configure(settings, network=training is not None)


def _check_audit(audit: Mapping[str, Any], where: str) -> None:
    check(audit, AUDIT, f"[audit] of {where}")
    select(audit.get("attacks", "standard"))
    check_space(audit.get("space", {}))
    for key, values in audit.get("space", {}).items():
        listed = isinstance(values, list) and len(values) > 0
        require(listed, f"{where}: [audit.space] {key} must be a list of values.")
    for key in COUNTS:
        whole(audit.get(key, 1), f"{where}: [audit] {key}", 1)
