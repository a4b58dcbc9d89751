"""One step: forward passes, weighted loss, exact accumulation, the simulated attacker.

Terms of a Gram matrix are not means over samples, so plain accumulation would be wrong. With
``accumulate`` > 1, ``forward`` runs all parts of the batch without gradient and joins the answers;
the loss is taken on the joined batch; ``backward`` runs each part again and sends the loss's
gradient through it. The result is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.distributed import rank, world
from immunis.core.state import seeded
from immunis.data.task import target_matrix
from immunis.data.transforms import augmented, mixed
from immunis.training.objective import Terms, View
from immunis.training.setup import Batch, TrainingRun, resting

Answers = dict[tuple[str, str], Tensor]  # by (role, layer); the role "logits" has no layer
Pair = tuple[Batch | None, Batch | None]  # of the primary and the harmful task


@dataclass(frozen=True)
class Rows:
    """The batches of one step, harmful labels as a float64 matrix."""

    primary: Batch
    harmful: Batch | None


@dataclass
class Outputs:
    """What an objective sees, and what ``backward`` needs to run the parts of a batch again."""

    view: View
    leaves: Answers
    run_part: Callable[[int], Answers] | None = None


def draw(run: TrainingRun, step: int, primary: Batch, harmful: Batch | None) -> Rows:
    """Seed a step by its number (and process); return its batches, augmented and mixed."""
    seed, training = 1_000_003 * run.seed + step, run.training
    torch.manual_seed(seed)
    generator = torch.Generator(run.fabric.device).manual_seed(seed * world() + rank())
    if training.augment:
        primary = augmented(primary[0], generator), primary[1]
    if harmful is None:
        return Rows(primary, None)
    task = run.streams[1].task
    inputs, targets = harmful[0], target_matrix(harmful[1], task.kind, task.outputs)
    if training.augment:
        inputs = augmented(inputs, generator)
    return Rows(primary, mixed(inputs, targets, generator) if training.mix else (inputs, targets))


def forward(run: TrainingRun, rows: Rows, primary: bool = True) -> Outputs:
    """Run the student on a step's rows, or on the harmful rows alone.

    Grids are cut at borders that follow from the step's seed: what evens out over one grid shows on
    another.
    """
    drawn = torch.rand(2, generator=torch.Generator().manual_seed(torch.initial_seed()))
    run.student.module.borders = tuple(drawn.tolist())
    pair = (rows.primary if primary else None), rows.harmful
    count, device = run.training.accumulate, run.fabric.device
    if count == 1:
        answers = _answers(run, pair)
        return Outputs(_view(run, pair, answers), answers)
    base = torch.initial_seed()

    def part(batch: Batch | None, index: int) -> Batch | None:
        if batch is None:
            return None
        return batch[0].tensor_split(count)[index], batch[1].tensor_split(count)[index]

    def run_part(index: int) -> Answers:
        # Both passes drop the same units; what terms draw does not depend on the parts.
        with seeded(base + index, [device] if device.type == "cuda" else []):
            return _answers(run, (part(pair[0], index), part(pair[1], index)))

    with torch.no_grad():
        found = [run_part(index) for index in range(count)]
    leaves = {key: torch.cat([one[key] for one in found]).requires_grad_() for key in found[0]}
    return Outputs(_view(run, pair, leaves), leaves, run_part)


def loss_of(
    view: View, terms_of: Callable[[View], Terms], weights: Mapping[str, float]
) -> tuple[Tensor, Terms]:
    """Return ``Σ weight·term`` over the terms with a weight, and those terms."""
    terms = {name: term for name, term in terms_of(view).items() if weights.get(name, 0.0)}
    total = 0.0 * view.logits.sum()  # every parameter takes part, as DDP expects
    for name, term in terms.items():
        total = total + weights[name] * term.to(total)
    return total, {name: term.detach() for name, term in terms.items()}


def backward(run: TrainingRun, loss: Tensor, outputs: Outputs) -> None:
    """Add the gradient of the loss to ``.grad``."""
    if outputs.run_part is None:
        run.fabric.backward(loss)
        return
    loss.backward()
    leaves, count = outputs.leaves, run.training.accumulate
    begin = dict.fromkeys(leaves, 0)
    for index in range(count):
        waits = index < count - 1 and world() > 1
        with run.fabric.no_backward_sync(run.student, enabled=waits):
            total = torch.zeros((), device=run.fabric.device)
            for key, answer in outputs.run_part(index).items():
                gradient, end = leaves[key].grad, begin[key] + len(answer)
                if gradient is not None:
                    total = total + (answer * gradient[begin[key] : end].to(answer)).sum()
                begin[key] = end
            run.fabric.backward(total)


def add_gradient(
    run: TrainingRun,
    rows: Rows,
    terms_of: Callable[[View], Terms],
    weights: Mapping[str, float],
    primary: bool = True,
) -> Terms:
    """Run forward pass, loss and backward pass; return the terms."""
    outputs = forward(run, rows, primary)
    loss, terms = loss_of(outputs.view, terms_of, weights)
    backward(run, loss, outputs)
    return terms


def values_of(terms: Terms) -> dict[str, float]:
    """Return the values of terms, read from the device at once."""
    if not terms:
        return {}
    first, *others = (term.double().reshape(()) for term in terms.values())
    found = torch.stack([first, *(term.to(first.device) for term in others)])
    return dict(zip(terms, found.tolist(), strict=True))


def clear(run: TrainingRun) -> None:
    """Drop all gradients."""
    for parameter in run.student.parameters():
        parameter.grad = None


def _answers(run: TrainingRun, pair: Pair) -> Answers:
    """Return logits of the first pass, and features of both batches."""
    given = {role: batch[0] for role, batch in zip("ph", pair, strict=True) if batch is not None}
    found: Answers = {}
    for roles in ["".join(given)] if run.joint else list(given):
        inputs = [given[role] for role in roles]
        sizes = [len(part) for part in inputs]
        # Where the tasks run apart, primary rows alone set BatchNorm's statistics.
        with resting(run.student) if roles == "h" else nullcontext():
            logits, features = run.student(torch.cat(inputs) if len(inputs) > 1 else inputs[0])
        found.setdefault(("logits", ""), logits.split(sizes)[0])
        for layer, z in features.items():
            found |= {(role, layer): part for role, part in zip(roles, z.split(sizes), strict=True)}
    return found


def _view(run: TrainingRun, pair: Pair, answers: Answers) -> View:
    """Return what the objective sees, the original's answers included."""
    (primary, harmful), teacher = pair, None
    if run.teacher is not None and primary is not None:
        parts = primary[0].tensor_split(run.training.accumulate)
        teacher = torch.cat([run.teacher(part) for part in parts])
    logits = answers["logits", ""]
    none = logits.new_zeros(0)
    return View(
        logits,
        none if primary is None else primary[1],
        {layer: z for (role, layer), z in answers.items() if role == "p"},
        {layer: z for (role, layer), z in answers.items() if role == "h"},
        none if harmful is None else harmful[1],
        teacher,
        run.head,
        run.training.label_smoothing,
        len(run.streams) < 2 or run.streams[1].task.kind == "classification",
    )
