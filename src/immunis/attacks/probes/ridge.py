"""Linear probing in closed form: ridge regression, which no conditioning can slow."""

from immunis.attacks.contract import Arena, Attack, Curve, Searched, Settings
from immunis.attacks.curves import one_step, solve_ridge
from immunis.attacks.features import lengths


def run(arena: Arena, settings: Settings) -> Curve:
    """Solve the normal equations once."""
    features = arena.features().in_basis(settings["basis"])
    weights, bias, flops = solve_ridge(features, settings["ridge"])
    return one_step(features, flops, lambda z: z.double() @ weights + bias)


SETTINGS: Searched = {"ridge": (1e-2, 1.0, 1e-4, 1e-6, 1e-9, 1e-12), "basis": lengths}
ATTACK = Attack(run, SETTINGS, closed_form=True, preset="quick", place=6, telling=1)
