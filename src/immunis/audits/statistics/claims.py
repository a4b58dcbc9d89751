"""What varied in an audit and how often, and whether that is enough for a claim."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from immunis.audits.statistics.bootstrap import Design
from immunis.core.shapes import CONTROL

ENOUGH = 5  # runs of a model that differ in its training or in the attacker's sample
ENOUGH_TRAININGS = 3  # where a defence may come out otherwise when it is trained again
ENOUGH_SAMPLES = 2  # of the attacker's rows
ENOUGH_CONTROLS = 3  # draws of the untrained copy


def factors(
    design: Design,
    original: str,
    trainings: Mapping[str, int],
    attackers: Mapping[str, int],
    solved: Collection[str] = (),
) -> dict[str, Any]:
    """Return what varied, and for each model why no claim can be made of it, or None.

    Copies do not count: neither variants that are the same model nor seeds that attack with the
    same rows.

    Args:
        design: what varies.
        original: name of the undefended model.
        trainings: how many different variants each model has.
        attackers: how many different samples of rows there were, and their sizes.
        solved: models that are linear maps; one that is given once need not vary.
    """
    samples = attackers["samples"]
    controls = len(design.origins[CONTROL]) * design.seeds
    models = {}
    for name, of in design.origins.items():
        different, missing = trainings.get(name, 0), []
        fixed = name == original or (name in solved and different == 1)
        if different * samples < ENOUGH:
            missing.append(f"fewer than {ENOUGH} different runs")
        if different < ENOUGH_TRAININGS and not fixed:
            missing.append(f"fewer than {ENOUGH_TRAININGS} different trainings")
        if samples < ENOUGH_SAMPLES:
            missing.append("one sample of the attacker's rows")
        if controls < ENOUGH_CONTROLS:
            missing.append(f"fewer than {ENOUGH_CONTROLS} untrained controls")
        claim = f"no claim ({', '.join(missing)})" if missing and name != CONTROL else None
        models[name] = {"variants": len(of), "runs": len(of) * design.seeds, "claim": claim}
    return {
        "originals": len(design.origins[original]),
        "seeds": design.seeds,
        "attackers": dict(attackers),
        "models": models,
    }
