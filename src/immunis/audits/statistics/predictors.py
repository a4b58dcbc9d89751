"""How well cheap figures rank what attackers reach and pay, over many models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from immunis.core.shapes import MANY_MODELS


def predictors(
    attacks: Mapping[str, Any], models: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any] | None:
    """Return the Spearman correlation of each cheap figure with scores and costs of attacks.

    Pairs are (attack, model) over the undefended and defended models; ``score`` is against the
    test score, ``cost`` against the multiplier in steps (∞ ranks last). A figure that foretold
    protection would fall with the score and rise with the cost (κ_H, RIR), or the reverse (ρ).
    Fewer than eight models rank nothing: None.
    """
    if len(names) < MANY_MODELS:
        return None
    found: dict[str, Any] = {}
    for figure in ("kappa_harmful", "rir", "rho"):
        every = [(models[m][figure], rows.get(m, {})) for rows in attacks.values() for m in names]
        done = [(x, row) for x, row in every if row.get("status") == "done"]
        pairs = [(x, row) for x, row in done if x is not None and not math.isnan(x)]
        costs = [(x, row["multiplier"]["steps"]) for x, row in pairs if "multiplier" in row]
        found[figure] = {
            "score": _spearman([(x, row["score"]["mean"]) for x, row in pairs]),
            "cost": _spearman([(x, cost) for x, cost in costs if not math.isnan(cost)]),
            "pairs": len(pairs),
        }
    return found


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the rank correlation; NaN where there is nothing to rank."""
    from scipy import stats

    if len(pairs) < 3 or any(len({p[side] for p in pairs}) < 2 for side in (0, 1)):
        return math.nan
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
