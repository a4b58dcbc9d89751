"""Change a copy of a model before it is attacked: train it on other data or on another loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from immunis.attacks.arrays import tensor
from immunis.attacks.contract import MOST_STEPS, Arena, Curve, NotApplicableError, Step
from immunis.attacks.features import Scores
from immunis.attacks.learning import Units, in_batches, loss_of
from immunis.attacks.tuning import BATCH, Network
from immunis.models.cut import Cut

RATES = (1e-3, 1e-4, 1e-2)  # of AdamW
SHARE = 0.75  # of the budget, so that something is left for the attack itself
NOTHING = Step(0, 0, 0.0, lambda: Scores(math.nan, math.nan))
Loss = Callable[[Tensor, Tensor, torch.Generator], Tensor]  # of inputs and their row numbers


def retrain(
    arena: Arena,
    network: nn.Module,
    trained: Iterable[nn.Parameter],
    inputs: np.ndarray,
    loss: Loss,
    rate: float,
    fit: np.ndarray | None = None,
) -> Step:
    """Minimise a loss over batches of all inputs, or the rows ``fit``, by AdamW; return its cost.

    It takes three quarters of the arena's budget, at most 300 steps. The network is trained in
    the mode it is in, and left in evaluation mode.
    """
    chosen = {id(p) for p in trained}
    for p in network.parameters():
        p.requires_grad_(id(p) in chosen)
    active = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(active, lr=rate, weight_decay=0.01)
    rows = tensor(inputs)

    def train(batch: Tensor, generator: torch.Generator) -> None:
        optimizer.zero_grad()
        loss(rows[batch].to(arena.device), batch, generator).backward()
        nn.utils.clip_grad_norm_(active, 5.0)
        optimizer.step()

    short = replace(arena, budget=max(1, min(MOST_STEPS, int(SHARE * arena.budget))))
    every = torch.from_numpy(np.arange(len(inputs)) if fit is None else fit)
    *_, last = in_batches(short, optimizer, train, NOTHING.scores, every, BATCH, 0.0)
    network.eval()
    return last


def on_primary(arena: Arena, cut: Cut, rate: float) -> Step:
    """Tune all of a model on primary data, with its own head if it has one, else with a fresh one.

    Such data is public, and what descent finds on it need not keep what a defence has hidden.
    """
    if arena.primary is None:
        raise NotApplicableError("no primary data was given (a primary task with test data)")
    data = replace(arena, **vars(arena.primary))
    network, own = Network(data, cut), cut.head_layer
    if own is not None and own.weight.shape == network.head.weight.shape:
        network.head = own
    labels = data.labels(data.train.labels)
    units = Units(labels, data.kind)

    def loss(inputs: Tensor, rows: Tensor, _: torch.Generator) -> Tensor:
        outputs = network(inputs)
        return loss_of(outputs, units.strip(labels[rows]).to(outputs.device), data.kind)

    network.to(arena.device).train()
    return retrain(arena, network, network.parameters(), data.train.inputs, loss, rate)


def after(first: Step, curve: Curve) -> Curve:
    """Yield the steps of a curve with the cost of what came before it."""
    for step in curve:
        yield step._replace(
            steps=first.steps + step.steps,
            samples=first.samples + step.samples,
            flops=first.flops + step.flops,
        )
