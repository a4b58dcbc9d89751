"""What a linear layer is worth on a task pair: both condition numbers, and what attackers reach.

*Released* is the κ of the paper's code (``reference_condition_number``). *Honest* is eq. 1: σ_max
over the smallest non-zero singular value, with the rank that the inputs give, which an invertible
layer keeps. Two attackers are cheap enough for a sweep: the paper's own gradient descent with exact
line search, and ridge regression, which no conditioning can slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunis.attacks.arrays import Samples, array_of
from immunis.attacks.contract import Arena
from immunis.attacks.search import run_attack
from immunis.audits.statistics.cost import add_costs, last_points, stopped
from immunis.core.errors import NumericalError
from immunis.models.find_cut import cut
from immunis.theory.gram import gram_of
from immunis.theory.rir import rir
from immunis.theory.spectrum import quiet_spectrum, reference_condition_number

KINDS = ("released", "honest")
DESCENT, CLOSED_FORM = ATTACKS = ("gd_line_search", "ridge")
ROUNDING = 1e-15  # relative size of the errors that must not change a figure
Ratios = dict[str, dict[str, Any]]


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return the layer ``x ↦ Wx + b``."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias is not None, device=weight.device)
    layer.weight = nn.Parameter(weight.double(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.double(), requires_grad=False)
    return layer.eval()


def shaken(values: Tensor, seed: int) -> Tensor:
    """Return values with random relative errors of the size of rounding."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    return values * (1 + ROUNDING * noise.to(values))


class Inputs:
    """The inputs X (n×D) of one task."""

    def __init__(self, x: Tensor) -> None:
        self.given, self.x = x, x.double()

    @cached_property
    def rank(self) -> int:
        """The rank of X, which an invertible layer keeps."""
        return quiet_spectrum(gram_of(self.given.cpu())).rank

    @cached_property
    def affine_rank(self) -> int:
        """The rank of features of a layer with a bias: that of X with a column of ones."""
        given = self.given.cpu()
        whole = quiet_spectrum(gram_of(torch.cat([given, torch.ones_like(given[:, :1])], 1)))
        return min(given.shape[1], whole.rank)

    def released(self, layer: nn.Linear | None = None) -> float:
        """Return κ of the features' Gram matrix as the released code computes it."""
        z = self.x if layer is None else layer(self.x)
        return reference_condition_number(z.T @ z)

    def floor(self, size: float, draws: int) -> dict[str, float]:
        """Return the released κ of ``size`` times the inputs, and its range under rounding."""
        near = [self.x, *(shaken(self.x, k) for k in range(draws))]
        found = [Inputs(size * x).released() for x in near]
        return {"median": float(np.median(found)), "low": min(found), "high": max(found)}

    def honest(self, layer: nn.Linear | None = None) -> float:
        """Return κ of eq. 1, from the singular values of the features themselves."""
        z = self.x if layer is None else layer(self.x)
        sigma = torch.linalg.svdvals(torch.linalg.qr(z, mode="r").R.cpu())
        affine = layer is not None and layer.bias is not None
        smallest = float(sigma[(self.affine_rank if affine else self.rank) - 1])
        if not smallest > 0:
            raise NumericalError("the layer is singular on a task's own directions: κ is infinite.")
        return (float(sigma[0]) / smallest) ** 2


class Pair:
    """A primary and a harmful task."""

    def __init__(self, primary: Tensor, harmful: Tensor) -> None:
        self.primary, self.harmful = Inputs(primary), Inputs(harmful)

    def kappas(self, layer: nn.Linear | None = None, draws: int = 0) -> dict[str, Any]:
        """Return κ of both tasks, primary first: honest, released, and released under rounding.

        ``rounding`` has a pair for the layer and for each of ``draws`` perturbations of it, and
        ``released`` has their medians: a rounding error that turns up seldom does not decide it.

        Raises:
            NumericalError: if the layer is not finite, or singular where a task has features.
        """
        both, layers = (self.primary, self.harmful), [layer]
        if layer is not None:
            if not all(bool(values.isfinite().all()) for values in layer.parameters()):
                raise NumericalError("the layer is no longer finite.")
            own = list(layer.parameters())
            layers += [linear(*(shaken(values, k) for values in own)) for k in range(draws)]
        rounding = [[side.released(each) for side in both] for each in layers]
        return {
            "honest": [side.honest(layer) for side in both],
            "released": np.median(rounding, axis=0).tolist(),
            "rounding": rounding,
        }


def ratios(before: Mapping[str, Any], after: Mapping[str, Any]) -> Ratios:
    """Return factors (i) and (ii) and RIR by kind of κ (paper, eq. 9), from ``Pair.kappas``.

    ``rounding`` holds those of the layer and of every perturbation, as lists.
    """

    def factors(old: Sequence[float], new: Sequence[float]) -> dict[str, float]:
        found = rir(primary=(old[0], new[0]), harmful=(old[1], new[1]))
        return {"harmful": found.harmful, "primary": found.primary, "rir": found.value}

    result: Ratios = {kind: factors(before[kind], after[kind]) for kind in KINDS}
    near = [factors(before["released"], each) for each in after["rounding"]]
    return result | {"rounding": {f: [each[f] for each in near] for f in result["honest"]}}


def attack(layer: nn.Linear, samples: Samples, budget: int, seed: int) -> dict[str, Any]:
    """Run both attacks on the layer's features and return their outcomes by name."""
    train, test = (torch.from_numpy(d.inputs).double() for d in (samples.train, samples.test))
    layer = layer.cpu()
    arena = Arena(
        cut(layer, train[:2], name="the layer"),
        **vars(samples),
        cache={"": (array_of(layer(train)), array_of(layer(test)))},
        extraction_flops=2.0 * layer.weight.numel(),
        budget=budget,
        seed=seed,
    )
    return {name: run_attack(name, arena, None) for name in ATTACKS}


def paid(
    outcomes: Mapping[Any, Sequence[Mapping[str, Any]]], original: Any, chance: float
) -> dict[Any, dict[str, Any]]:
    """Return for each extractor and attack the test score, its curve and its relative cost.

    Scores and curves are medians over the repeats, with the lowest and the highest. ``outcomes``
    holds the results of ``attack`` by extractor; costs are relative to the ``original`` extractor.
    """
    found: dict[Any, dict[str, Any]] = {name: {} for name in outcomes}
    for which in ATTACKS:
        curves, rows = {}, dict[Any, dict[str, Any]]()
        for name, repeats in outcomes.items():
            runs = [run[which] for run in repeats]
            if bad := [run for run in runs if run["status"] != "done"]:
                found[name][which] = {"status": bad[0]["status"], "reason": bad[0]["reason"]}
            else:
                curves[name], rows[name] = [stopped(run["curve"]) for run in runs], {}
        add_costs(rows, curves, original, chance)
        for name, row in rows.items():
            scores, curve = [of[-1]["score"] for of in curves[name]], []
            for step, points in last_points(curves[name]):
                middle = _middle([point["score"] for point in points])
                curve.append({"steps": step, **{k: round(v, 4) for k, v in middle.items()}})
            found[name][which] = {
                "score": {**_middle(scores), "values": scores},
                "steps": row["cost"]["steps"],
                "multiplier": row["multiplier"]["steps"],
                "curve": curve,
            }
    return found


def _middle(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "low": min(values), "high": max(values)}


def reached(attacks: Mapping[str, Any], step: int | None) -> Any:
    """Return what descent reaches at a step, or (None) ridge regression; None where unknown."""
    if step is None:
        return attacks.get(CLOSED_FORM, {}).get("score")
    curve = attacks.get(DESCENT, {}).get("curve", [])
    return next((point for point in curve if point["steps"] == step), None)
