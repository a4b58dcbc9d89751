"""Linear probing in closed form: ridge regression, which no conditioning can slow."""

from immunis.attacks.contract import Arena, Attack, Curve, Searched, Settings
from immunis.attacks.curves import one_step
from immunis.attacks.features import lengths
from immunis.attacks.meter import solve_flops
from immunis.theory.gram import gram_of
from immunis.theory.ridge import ridge_probe


def run(arena: Arena, settings: Settings) -> Curve:
    """Solve the normal equations once."""
    features = arena.features().in_basis(settings["basis"])
    weights, bias = ridge_probe(gram_of(features.z, features.targets()), settings["ridge"])
    flops = solve_flops(features.samples, features.dimension, features.outputs)
    return one_step(features, flops, lambda z: z.double() @ weights + bias)


SETTINGS: Searched = {"ridge": (1e-2, 1.0, 1e-4, 1e-6, 1e-9, 1e-12), "basis": lengths}
ATTACK = Attack(run, SETTINGS, closed_form=True, preset="quick", place=6, telling=1)
