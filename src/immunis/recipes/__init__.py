"""Recipes: a run described in TOML. The bundled ones lie beside this file.

A recipe names its data source and, for ``immunize``, its method; everything else has a
default. Unknown keys are refused. Recipes are data: nothing in them is executed.
"""

from __future__ import annotations

import dataclasses

from immunis.attacks import GROUPS
from immunis.methods import METHODS, Method
from immunis.recipes.checks import bundled, check_recipe, load_recipe
from immunis.recipes.recipe import SOURCES, Recipe

__all__ = ["Recipe", "bundled", "catalogue", "check_recipe", "load_recipe"]


def catalogue() -> dict[str, list[dict[str, str]]]:
    """Return what there is to choose from: methods and settings, attacks, recipes, sources."""

    def settings(method: Method) -> str:
        kinds = {"": method.settings, "networks: ": method.network}
        return "; ".join(
            label + ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(kind))
            for label, kind in kinds.items()
            if kind is not None
        )

    return {
        "methods": [
            {"name": m.name, "summary": m.summary, "settings": settings(m)}
            for m in METHODS.values()
        ],
        "attacks": [
            {"name": attack.name, "summary": attack.summary, "family": group}
            for group, attacks in GROUPS.items()
            for attack in attacks
        ],
        "recipes": [
            {"name": name, "summary": path.read_text(encoding="utf-8").splitlines()[0][2:]}
            for name, path in bundled().items()
        ],
        "sources": [
            {"name": name, "summary": (source.__doc__ or "").splitlines()[0]}
            for name, source in SOURCES.items()
        ],
    }
