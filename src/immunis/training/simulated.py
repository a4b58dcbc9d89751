"""The simulated attacker: an objective's terms at the parameters that an attacker would reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from immunis.core.distributed import summed, world
from immunis.training.objective import Attacker, Terms
from immunis.training.setup import TrainingRun
from immunis.training.step import Rows, add_gradient, clear

DIFFERENCE = 1e-2  # length of a second-order probe, relative to an attacker's step


def attack(run: TrainingRun, rows: Rows) -> Terms:
    """Add the gradient of the terms after the simulated attack, if any; return the terms."""
    attacker = run.objective.attacker
    if attacker is None or rows.harmful is None:
        return {}
    with attacked(run, attacker, rows) as carry_back:
        goal = run.objective
        terms = add_gradient(run, rows, goal.after, run.weights, primary=goal.after_primary)
        carry_back()
    return terms


@contextmanager
def attacked(run: TrainingRun, attacker: Attacker, rows: Rows) -> Iterator[Callable[[], None]]:
    """Let the attacker move the parameters, yield ``carry_back``, and restore the parameters.

    ``carry_back`` turns ``.grad`` where the attacker ended into the gradient at the start.
    The harmful head learns from the attacker's first gradient.
    """
    start = [p.detach().clone() for p in run.body]
    size = norm_of(run, start)
    path: list[tuple[list[Tensor], float]] = []

    def gradient() -> list[Tensor]:
        clear(run)
        add_gradient(run, rows, lambda view: {"": attacker.loss(view)}, {"": 1.0}, primary=False)
        return [g.clone() for g in gradients(run)]

    def carry_back() -> None:
        """Apply ``v ← v − c·∇²L·v`` along the path, by central differences."""
        if attacker.order == 1:
            return
        v = [g.clone() for g in gradients(run)]
        others = {p: p.grad for p in run.student.parameters() if p.grad is not None}
        for place, factor in reversed(path):
            norm = norm_of(run, v)
            if norm == 0:
                break
            h = DIFFERENCE * attacker.rate * size / norm
            sides = []
            for sign in (1.0, -1.0):
                _place(run, [p + sign * h * d for p, d in zip(place, v, strict=True)])
                sides.append(gradient())
            v = [d - factor * (a - b) / (2 * h) for d, a, b in zip(v, *sides, strict=True)]
        clear(run)
        for p, g in (others | dict(zip(run.body, v, strict=True))).items():  # the head's as well
            p.grad = g

    try:
        for _ in range(attacker.steps):
            with nullcontext() if path else _learning_head(run):
                found = gradient()
            norm = norm_of(run, found)
            factor = attacker.rate * size / norm if norm > 0 else 0.0
            path.append(([p.detach().clone() for p in run.body], factor))
            with torch.no_grad():
                for p, g in zip(run.body, found, strict=True):
                    p.sub_(g, alpha=factor)
        clear(run)
        yield carry_back
    finally:
        _place(run, start)


def _place(run: TrainingRun, values: list[Tensor]) -> None:
    with torch.no_grad():
        for p, value in zip(run.body, values, strict=True):
            p.copy_(value)


@contextmanager
def _learning_head(run: TrainingRun) -> Iterator[None]:
    """Let the harmful head, if any, take one gradient step of its own."""
    if run.head is None:
        yield
        return
    run.head.requires_grad_(True)
    try:
        yield
        scale = loss_scale(run) if run.training.accumulate == 1 else 1.0  # parts: a plain backward
        with torch.no_grad():
            for p in run.head.parameters():
                if p.grad is not None:
                    p.sub_(summed(p.grad) / world() / scale)
                    p.grad = None
    finally:
        run.head.requires_grad_(False)


def gradients(run: TrainingRun) -> list[Tensor]:
    """Return the gradients of the extractor's trained parameters; zeros where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in run.body]


def norm_of(run: TrainingRun, tensors: list[Tensor]) -> float:
    """Return the length of a set of parameters or gradients, over all shards."""
    square = torch.stack([t.detach().double().square().sum() for t in tensors]).sum()
    return math.sqrt(float(summed(square) if run.sharded else square))


def loss_scale(run: TrainingRun) -> float:
    """Return the factor on losses in half precision; 1 otherwise."""
    return 1.0 if run.scaler is None else float(run.scaler.get_scale())
