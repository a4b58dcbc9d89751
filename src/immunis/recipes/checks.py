"""Read a recipe, and check every key of it before anything is loaded or run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_type_hints

from immunis.attacks import BUDGETS, check_space, select
from immunis.core.errors import InputError, unknown
from immunis.core.records import Record
from immunis.core.settings import MOST, check, require, require_score, require_steps, whole
from immunis.core.shapes import CONTROL, ORIGINAL, SCRATCH
from immunis.core.toml import read_toml
from immunis.data import sources
from immunis.data.sources.text_files import checked_files
from immunis.methods import get_method
from immunis.models.text import POOLINGS
from immunis.models.zoo import LIBRARIES
from immunis.recipes.paths import PATHS, check_path
from immunis.recipes.recipe import SOURCES, TABLES, Recipe
from immunis.training.settings import training_of

WIDEST, DEEPEST = 1 << 16, 100  # of a small network
KINDS: dict[str, Any] = {
    "init": Literal["identity", "random"],
    "weights": str,
    "network": Sequence[int],
    "cnn": Sequence[int],
    **dict.fromkeys(LIBRARIES, str),
}
MODEL = {**KINDS, "pretrained": bool, "checkpoint": str, "sha256": str, "in_order": bool}
MODEL |= {"imagenet_head": bool, "pooling": Literal[*POOLINGS], "options": dict, "head": str}
COUNTS = ("seeds", "trials", "variants", "originals")
AUDIT: dict[str, Any] = {"attacks": str | Sequence[str], "methods": Sequence[dict], "space": dict}
AUDIT |= dict.fromkeys(COUNTS, int) | {"budget": int | dict, "threshold": float}
RESERVED = (ORIGINAL, CONTROL, SCRATCH)
NAME = re.compile(r"[\w+-][\w .+-]{0,99}")


def bundled() -> dict[str, Path]:
    """Return the names and paths of the recipes that come with the package."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}


def load_recipe(reference: str | Path, allow_outside: bool = False) -> Recipe:
    """Read and check a recipe: a TOML file, the name of a bundled one, or a record that holds one.

    A recipe may come from anybody, so its paths must not leave its folder, or that of the data,
    unless ``allow_outside``.
    """
    path = bundled().get(str(reference), Path(reference))
    if not path.suffix and not path.exists():
        raise unknown("recipe", str(reference), bundled())
    if path.suffix == ".json":
        values = Record.load(path).settings.get("recipe")
        if not values or not isinstance(values, Mapping):
            raise InputError(f"{path} holds no recipe: its run was asked for in Python.")
        return check_recipe(values, path, allow_outside)
    return check_recipe(read_toml(path, "recipe"), path, allow_outside)


def check_recipe(values: Mapping[str, Any], path: Path, allow_outside: bool = False) -> Recipe:
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
    texts = _check_data(data, where)
    own = data.get("source") == "text" and "tokenizer" not in data
    told = f"{where}: text needs a tokenizer in [data], or [model] transformers, which has one."
    require(not own or "transformers" in model, told)
    for table in (training, pretrain):
        training_of(table or {})
    for key in ("mix", "harmful_held_out"):
        told = f"{where}: {key} is for harmful rows, and [pretrain] has none."
        require(not (pretrain or {}).get(key), told)
    check(model, MODEL, f"[model] of {path}")
    kinds = [key for key in model if key in KINDS]
    require(len(kinds) == 1, f"{where}: [model] needs exactly one of {', '.join(KINDS)}.")
    own = "transformers" in model and model.get("pretrained", False)  # of a folder
    for key, given in (("in_order", False), ("sha256", own)):
        told = f"{where}: [model] {key} says how to read a checkpoint, and there is none."
        require(key not in model or "checkpoint" in model or given, told)
    told = f"{where}: [model] imagenet_head needs pretrained weights or a checkpoint."
    weights = model.get("pretrained", False) or "checkpoint" in model
    require(not model.get("imagenet_head") or weights, told)
    for key in model.keys() - KINDS.keys():
        told = f"{where}: [model] {key} needs one of {', '.join(LIBRARIES)}."
        require(kinds[0] in LIBRARIES, told)
    widths: Sequence[int] = model.get("network") or model.get("cnn") or ()
    fits = all(1 <= width <= WIDEST for width in widths)
    require(fits, f"{where}: widths of the network must be at least 1 and at most {WIDEST:,}.")
    deep = f"{where}: the network has {len(widths)} layers; expected at most {DEEPEST}."
    require(len(widths) <= DEEPEST, deep)
    _check_audit(audit, where)
    for key in () if allow_outside else PATHS:
        for table in (data, model, *texts):
            check_path(key, table.get(key), where)
    seed, name = values.get("seed", 0), values.get("name", path.stem)
    for given in (seed, data.get("seed", 0)):
        whole(given, f"{where}: seed")
    told = f"{where}: name={name!r} names a folder; use at most 100 letters, digits, spaces and any"
    fits = isinstance(name, str) and NAME.fullmatch(name) is not None
    require(fits, f"{told} of . _ + - (no leading dot).")
    recipe = Recipe(
        name, data, method, model, audit, pretrain, training, seed, path.parent, allow_outside
    )
    methods = [*([method] if method else []), *audit.get("methods", ())]
    for table in methods:
        _check_method(table, recipe, where)
    trained = [pretrain, *(recipe.training_for(table) for table in ({}, *methods))]
    drawn = pretrain is not None or "network" in model or model.get("init") == "random"
    told = f"{where}: [audit] originals={recipe.originals}: this model is the same for each seed."
    require(recipe.originals == 1 or drawn, f"{told} Add [pretrain].")
    network = recipe.is_network or all(part is None for part in trained)
    require(network, f"{where}: training needs a network in [model].")
    return recipe


def _check_data(data: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """Check the keys of [data]; return the tables of single tasks, if it has any."""
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
        given |= option == "tokenizer"  # the model's
        require(given, f"{where}: data source {name!r} needs {option!r}.")
    if SOURCES[name] is not sources.text:
        return []
    tables = [data["primary"], data["harmful"], *data.get("transfer", ())]
    for table in tables:
        checked_files(table)
    return tables


def _check_method(table: Mapping[str, Any], recipe: Recipe, where: str) -> None:
    settings = dict(table)
    whole(settings.pop("tried", 1), f"{where}: tried of a method", 1)
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
    if "attacks" in audit:
        select(audit["attacks"])
    budget = BUDGETS["standard"].changed(audit.get("budget"))
    check_space(audit.get("space", {}))
    for key, values in audit.get("space", {}).items():
        listed = isinstance(values, list) and len(values) > 0
        require(listed, f"{where}: [audit.space] {key} must be a list of values.")
    for key in COUNTS:
        whole(audit.get(key, 1), f"{where}: [audit] {key}", 1, MOST[key])
    require_score(audit.get("threshold"), f"{where}: [audit] threshold")
    require_steps(audit.get("seeds", 1), budget.most)
    originals, variants = (audit.get(key, 1) for key in ("originals", "variants"))
    require(
        "variants" not in audit or variants >= originals,
        f"{where}: [audit] variants={variants}: expected at least one for each of {originals} "
        "originals.",
    )
