"""The defences of a recipe, each as a table: a method, its settings, its label and training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from immunis.core.errors import unknown
from immunis.methods import get_method
from immunis.recipes.recipe import Recipe

Table = Mapping[str, Any]


def tables_of(recipe: Recipe, methods: Sequence[str] | None = None) -> dict[str, Table]:
    """Return the tables of a recipe's defences by label: those named, or all.

    They are its ``[[audit.methods]]`` and, if it has a label or is alone, its own method.
    """
    found: dict[str, Table] = {}
    own = [recipe.method] if recipe.method else []
    compared = recipe.audit.get("methods", own)
    if compared is not own and "label" in recipe.method:
        compared = [*compared, *own]
    for table in compared:
        label = table.get("label", table["name"])
        found[label if label not in found else f"{label} {len(found) + 1}"] = table
    for name in methods or ():
        if name not in found:
            raise unknown("defence of the recipe", name, found)
    return {label: t for label, t in found.items() if methods is None or label in methods}


def configured(table: Table, network: bool = False) -> Any:
    """Return a method's settings as its table gives them, checked."""
    return get_method(table["name"]).configure(settings_of(table), network=network)


def settings_of(table: Table) -> dict[str, Any]:
    """Return the settings of a method alone."""
    return {k: v for k, v in table.items() if k not in ("name", "label", "training", "tried")}


def tried(table: Table, runs: Iterable[Mapping[str, Any] | None]) -> int:
    """Return how many settings a defence was tuned over: its table's, and the weights searched."""
    weights = max((len(run.get("weights_tried", ())) for run in runs if run), default=0)
    return table.get("tried", 1) + max(weights - 1, 0)
