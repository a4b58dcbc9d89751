"""One step: forward passes, weighted loss, exact accumulation, the simulated attacker.

Terms of a Gram matrix are not means over samples, so plain accumulation would be wrong. With
``accumulate`` > 1, ``forward`` runs all parts of the batch without gradient and joins the answers;
the loss is taken on the joined batch; ``backward`` runs each part again and sends the loss's
gradient through it. The result is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.distributed import rank, summed, world
from immunis.core.errors import NumericalError
from immunis.data.task import target_matrix
from immunis.data.transforms import augmented, mixed
from immunis.theory.rho import recalled
from immunis.training.objective import SUPERVISED, Attacker, Terms, View
from immunis.training.setup import Batch, TrainingRun, resting

Answers = dict[tuple[str, str], Tensor]  # by (role, layer); the role "logits" has no layer
Pair = tuple[Batch | None, Batch | None]  # of the primary and the harmful task
DIFFERENCE = 1e-2  # length of a second-order probe, relative to an attacker's step


@dataclass
class Rows:
    """The batches of one step: harmful labels as a float64 matrix, and what the teacher adds."""

    primary: Batch | None
    harmful: Batch | None
    recalled: Tensor | None = None


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
    """Run the student on a step's rows, or on the harmful rows alone."""
    pair = (rows.primary if primary else None), rows.harmful
    asked = _asked(run, rows, pair)
    count, device = run.training.accumulate, run.fabric.device
    if count == 1:
        answers = _answers(run, pair, sum(map(len, asked)) if run.joint else None)
        return Outputs(_view(run, rows, pair, asked, answers), answers)
    base = torch.initial_seed()

    def part(batch: Batch | None, index: int) -> Batch | None:
        if batch is None:
            return None
        return batch[0].tensor_split(count)[index], batch[1].tensor_split(count)[index]

    def run_part(index: int) -> Answers:
        # Both passes drop the same units; what terms draw does not depend on the parts.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(base + index)
            return _answers(run, (part(pair[0], index), part(pair[1], index)))

    with torch.no_grad():
        found = [run_part(index) for index in range(count)]
    leaves = {key: torch.cat([one[key] for one in found]).requires_grad_() for key in found[0]}
    return Outputs(_view(run, rows, pair, asked, leaves), leaves, run_part)


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


def attack(run: TrainingRun, rows: Rows) -> Terms:
    """Add the gradient of the terms after the simulated attack, if any; return the terms."""
    attacker = run.objective.attacker
    if attacker is None or rows.harmful is None:
        return {}
    with _attacked(run, attacker, rows) as carry_back:
        terms = add_gradient(run, rows, run.objective.after, run.weights, primary=False)
        carry_back()
    return terms


def balanced_weights(run: TrainingRun, rows: Rows) -> dict[str, float]:
    """Return the objective's weights; None becomes ``multiple·‖∇supervised‖/‖∇term‖``."""
    goal = run.objective
    found = {SUPERVISED: 1.0} | {n: w for n, w in goal.weights.items() if w is not None}

    def pull(name: str) -> float:
        clear(run)
        only = {name: 1.0 / _scale(run)}  # unscaled, so that half precision does not overflow
        if goal.attacker is not None and rows.harmful is not None:
            with _attacked(run, goal.attacker, rows):
                add_gradient(run, rows, goal.after, only, primary=False)
        add_gradient(run, rows, goal.terms, only)
        return _norm(run, _gradients(run))

    balanced = [name for name, weight in goal.weights.items() if weight is None]
    base = pull(SUPERVISED) if balanced else 0.0
    for name in balanced:
        size = pull(name)
        if not (math.isfinite(size) and math.isfinite(base)):
            told = f"the gradient of {name} or of the primary loss is not finite at the start. "
            raise NumericalError(f"{told}Check the model's weights and the scale of its inputs.")
        found[name] = goal.multiples.get(name, 1.0) * base / size if size > 0 else 0.0
        if not size:
            run.note(f"{name} has no gradient at the start and is left out: give it a weight.")
    return found


def clear(run: TrainingRun) -> None:
    """Drop all gradients."""
    for parameter in run.student.parameters():
        parameter.grad = None


def _gradients(run: TrainingRun) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in run.body]


def _norm(run: TrainingRun, tensors: list[Tensor]) -> float:
    square = torch.stack([t.detach().double().square().sum() for t in tensors]).sum()
    return math.sqrt(float(summed(square) if run.sharded else square))


def _scale(run: TrainingRun) -> float:  # of losses in half precision
    return 1.0 if run.scaler is None else float(run.scaler.get_scale())


def _answers(run: TrainingRun, pair: Pair, asked: int | None = None) -> Answers:
    """Return logits of the first pass, and features of both batches.

    The teacher is asked next about ``asked`` rows of a joint pass.
    """
    given = {role: batch[0] for role, batch in zip("ph", pair, strict=True) if batch is not None}
    found: Answers = {}
    for roles in ["".join(given)] if run.joint else list(given):
        inputs = [given[role] for role in roles]
        sizes = [len(part) for part in inputs]
        teaches = run.teacher is not None and run.objective.teacher and roles.startswith("p")
        lent = sizes[0] if asked is None else asked
        follow = run.teacher.following(lent) if run.teacher and teaches else nullcontext()
        rest = resting(run.student) if roles == "h" and not run.joint else nullcontext()
        with follow, rest:
            logits, features = run.student(torch.cat(inputs) if len(inputs) > 1 else inputs[0])
        found.setdefault(("logits", ""), logits.split(sizes)[0])
        for layer, z in features.items():
            found |= {(role, layer): part for role, part in zip(roles, z.split(sizes), strict=True)}
    return found


def _asked(run: TrainingRun, rows: Rows, pair: Pair) -> list[Tensor]:
    """Return inputs to ask the teacher about: primary ones, and once a step harmful ones."""
    taught = pair[0] if run.objective.teacher else None
    told = pair[1] if run.objective.recall and rows.recalled is None else None
    return [batch[0] for batch in (taught, told) if batch is not None]


def _view(run: TrainingRun, rows: Rows, pair: Pair, asked: list[Tensor], answers: Answers) -> View:
    """Return what the objective sees, the original's answers included."""
    (primary, harmful), teacher = pair, None
    if run.teacher is not None and asked:
        asked = [torch.cat(asked)] if run.joint else asked  # as the student's own passes
        parts = [part for x in asked for part in x.tensor_split(run.training.accumulate)]
        logits, features = map(torch.cat, zip(*map(run.teacher, parts), strict=True))
        count = len(primary[0]) if run.objective.teacher and primary is not None else 0
        teacher = (logits[:count], features[:count]) if count else None
        if len(features) > count and harmful is not None:
            rows.recalled = recalled(features[count:], harmful[1])
    logits = answers["logits", ""]
    none = logits.new_zeros(0)
    targets = none if harmful is None else harmful[1]
    return View(
        logits,
        none if primary is None else primary[1],
        {layer: z for (role, layer), z in answers.items() if role == "p"},
        {layer: z for (role, layer), z in answers.items() if role == "h"},
        targets if harmful is None or rows.recalled is None else rows.recalled,
        teacher,
        run.head,
        run.training.label_smoothing,
        len(run.streams) < 2 or run.streams[1].task.kind == "classification",
    )


@contextmanager
def _attacked(run: TrainingRun, attacker: Attacker, rows: Rows) -> Iterator[Callable[[], None]]:
    """Let the attacker move the parameters; yield what carries ``.grad`` back; put them back.

    The harmful head learns from the attacker's first gradient.
    """
    start = [p.detach().clone() for p in run.body]
    size = _norm(run, start)
    path: list[tuple[list[Tensor], float]] = []

    def gradient() -> list[Tensor]:
        clear(run)
        add_gradient(run, rows, lambda view: {"": attacker.loss(view)}, {"": 1.0}, primary=False)
        return [g.clone() for g in _gradients(run)]

    def carry_back() -> None:
        """Apply ``v ← v − c·∇²L·v`` along the path, by central differences."""
        if attacker.order == 1:
            return
        v = [g.clone() for g in _gradients(run)]
        for place, factor in reversed(path):
            norm = _norm(run, v)
            if norm == 0:
                break
            h = DIFFERENCE * attacker.rate * size / norm
            sides = []
            for sign in (1.0, -1.0):
                _place(run, [p + sign * h * d for p, d in zip(place, v, strict=True)])
                sides.append(gradient())
            v = [d - factor * (a - b) / (2 * h) for d, a, b in zip(v, *sides, strict=True)]
        clear(run)
        for p, g in zip(run.body, v, strict=True):
            p.grad = g

    try:
        for _ in range(attacker.steps):
            with nullcontext() if path else _learning_head(run):
                gradients = gradient()
            norm = _norm(run, gradients)
            factor = attacker.rate * size / norm if norm > 0 else 0.0
            path.append(([p.detach().clone() for p in run.body], factor))
            with torch.no_grad():
                for p, g in zip(run.body, gradients, strict=True):
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
        scale = _scale(run) if run.training.accumulate == 1 else 1.0  # parts: a plain backward
        with torch.no_grad():
            for p in run.head.parameters():
                if p.grad is not None:
                    p.sub_(summed(p.grad) / world() / scale)
                    p.grad = None
    finally:
        run.head.requires_grad_(False)
