"""Linear probing by L-BFGS, full batch."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.attacks.base import Arena, Attack, Meter, Point, Settings, checkpoints, count_flops
from immunis.attacks.probing import linear_probe, loss_of

MOST_STEPS = 50  # a quasi-Newton step is worth many plain ones


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Minimise cross-entropy (or squared error) plus ``penalty·‖w‖²`` with strong Wolfe steps."""
    features = arena.features().scaled()
    probe, meter = linear_probe(features).double(), Meter(arena)
    z, y = features.z.double(), features.y
    optimizer = torch.optim.LBFGS(
        probe.parameters(),
        lr=settings["rate"],
        max_iter=1,
        max_eval=40,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=0.0,
        tolerance_change=0.0,
    )
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = loss_of(probe(z), y, features.kind)
        loss = loss + settings["penalty"] * probe.weight.square().sum()
        loss.backward()
        return loss

    _, per_call = count_flops(closure)
    calls = 0
    budget = min(arena.budget, MOST_STEPS)
    marks, before = set(checkpoints(budget)), float("inf")
    for step in range(1, budget + 1):
        loss = float(optimizer.step(closure).detach())
        settled = before - loss < 1e-10 * abs(loss)
        before = loss
        if step in marks or settled:
            meter.point(
                step,
                calls * len(z),
                calls * per_call,
                lambda: features.scores(lambda x: probe(x.double())),
            )
        if settled:
            break
    return meter.points


ATTACK = Attack(
    "lbfgs",
    "linear probe by L-BFGS, full batch, at most 50 steps",
    run,
    lambda arena: {"rate": (1.0, 0.3), "penalty": (1e-4,)},
)
