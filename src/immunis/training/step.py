"""One step's gradients: forward passes, weighted terms, accumulation, the simulated attacker.

Terms of a Gram matrix are no means over samples, so plain accumulation would be wrong. With
``accumulate`` > 1 all parts of the batch are run without gradient first; the loss and its
gradient with respect to every answer and feature are taken on the joined batch; then each
part is run again and that gradient is sent back through it. The result is exact.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.distributed import summed, world
from immunis.core.errors import NumericalError
from immunis.models.teacher import Teacher
from immunis.theory.rho import recalled
from immunis.training.objective import SUPERVISED, Attacker, Objective, Terms, View

Batch = tuple[Tensor, Tensor]
DIFFERENCE = 1e-2  # of a second-order probe, relative to the parameters


class Engine:
    """Computes gradients of an objective into ``.grad``.

    Args:
        fabric: Lightning Fabric, which runs the backward passes.
        tapped: the model with taps, set up by Fabric.
        objective: the loss.
        body: the extractor's trained parameters, which a simulated attacker moves.
        teacher: gives the original's answers and features, and follows the model's passes.
        head: a harmful head that follows the features.
        smoothing: label smoothing.
        classify: whether harmful labels are classes.
        accumulate: number of parts a batch is run in.
        joint: whether both tasks may share a forward pass (no statistics are taken from it).
        sharded: whether each process holds only a part of every gradient.
    """

    def __init__(
        self,
        fabric: Any,
        tapped: Any,
        objective: Objective,
        body: list[nn.Parameter],
        *,
        teacher: Teacher | None = None,
        head: nn.Linear | None = None,
        smoothing: float = 0.0,
        classify: bool = True,
        accumulate: int = 1,
        joint: bool = True,
        sharded: bool = False,
    ) -> None:
        self.fabric, self.tapped, self.objective = fabric, tapped, objective
        self.body, self.teacher, self.head = body, teacher, head
        self.smoothing, self.classify, self.accumulate = smoothing, classify, accumulate
        self.joint, self.sharded = joint, sharded
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)  # of half precision alone
        self.weights: dict[str, float] = {}
        self.notes: list[str] = []
        self._targets: Tensor | None = None  # this step's, beside what the original says of them

    def gradients(self, primary: Batch, harmful: Batch | None) -> dict[str, float]:
        """Leave the objective's gradient in ``.grad`` and return the terms' values.

        A harmful batch brings its targets as a float64 matrix, one-hot for classes.
        """
        self._targets = None
        if not self.weights:
            self.weights = self._balance(primary, harmful)
        values: dict[str, float] = {}
        attacker = self.objective.attacker
        self._clear()
        if attacker is not None and harmful is not None:
            with self._attacked(attacker, harmful) as carry:
                values |= self._backward(None, harmful, self.objective.after)
                carry()
        values |= self._backward(primary, harmful, self.objective.terms)
        return values

    def _clear(self) -> None:
        for parameter in self.tapped.parameters():
            parameter.grad = None

    def _scale(self) -> float:
        """Factor by which half precision multiplies a loss before its backward pass."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def _norm(self, tensors: list[Tensor]) -> float:
        square = torch.stack([t.detach().double().square().sum() for t in tensors]).sum()
        return math.sqrt(float(summed(square) if self.sharded else square))

    def _grads(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self.body]

    def _balance(self, primary: Batch, harmful: Batch | None) -> dict[str, float]:
        """Weights as given; None becomes ``multiple·‖∇supervised‖/‖∇term‖`` at the start."""
        given, found = self.objective.weights, {SUPERVISED: 1.0}
        unknown = [name for name, weight in given.items() if weight is None]
        found |= {name: weight for name, weight in given.items() if weight is not None}

        def pull(name: str) -> float:
            self._clear()
            only = {name: 1.0 / self._scale()}  # unscaled, lest half precision overflow
            attacker = self.objective.attacker
            if attacker is not None and harmful is not None:
                with self._attacked(attacker, harmful):
                    self._backward(None, harmful, self.objective.after, only)
            self._backward(primary, harmful, self.objective.terms, only)
            return self._norm(self._grads())

        if unknown:
            base = pull(SUPERVISED)
            for name in unknown:
                size, multiple = pull(name), self.objective.multiples.get(name, 1.0)
                if not (math.isfinite(size) and math.isfinite(base)):
                    raise NumericalError(
                        f"the gradient of {name} or of the primary loss is not finite at the "
                        "start. Check the model's weights and the scale of its inputs."
                    )
                found[name] = multiple * base / size if size > 0 else 0.0
                if not size:
                    self.notes.append(
                        f"{name} has no gradient at the start, so no weight balances it: it is "
                        "left out. Give it a weight."
                    )
                    warnings.warn(self.notes[-1], stacklevel=2)
        return found

    def _backward(
        self,
        primary: Batch | None,
        harmful: Batch | None,
        terms_of: Callable[[View], Terms],
        weights: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Add the gradient of the weighted terms to ``.grad``; return the terms' values."""
        weights = self.weights if weights is None else weights
        seen: Terms = {}  # read at the end, so that no device waits for a backward pass to begin

        def loss_of(view: View) -> Tensor:
            terms = {name: term for name, term in terms_of(view).items() if weights.get(name, 0.0)}
            seen.update({name: term.detach() for name, term in terms.items()})
            total = 0.0 * view.logits.sum()  # every parameter takes part, as DDP expects
            for name, term in terms.items():
                total = total + weights[name] * term.to(total)
            return total

        if self.accumulate == 1:
            answers = self._answers(primary, harmful)
            self.fabric.backward(loss_of(self._view(answers, primary, harmful)))
            return _values(seen)
        parts = list(zip(self._parts(primary), self._parts(harmful), strict=True))
        base, device = torch.initial_seed(), self.fabric.device

        def run(index: int) -> dict[tuple, Tensor]:
            # Both passes drop the same units, and what terms draw does not depend on the parts.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(base + index)
                return self._answers(*parts[index])

        with torch.no_grad():
            runs = [run(index) for index in range(len(parts))]
        leaves = {key: torch.cat([run[key] for run in runs]).requires_grad_() for key in runs[0]}
        loss_of(self._view(leaves, primary, harmful)).backward()
        start = dict.fromkeys(leaves, 0)
        for index in range(len(parts)):
            last = index == len(parts) - 1
            with self.fabric.no_backward_sync(self.tapped, enabled=not last and world() > 1):
                total = torch.zeros((), device=self.fabric.device)
                for key, answer in run(index).items():
                    gradient, begin = leaves[key].grad, start[key]
                    start[key] = begin + len(answer)
                    if gradient is not None:
                        total = total + (answer * gradient[begin : start[key]].to(answer)).sum()
                self.fabric.backward(total)
        return _values(seen)

    def _parts(self, batch: Batch | None) -> list[Batch | None]:
        if batch is None:
            return [None] * self.accumulate
        return list(zip(*(t.tensor_split(self.accumulate) for t in batch), strict=True))

    def _answers(self, primary: Batch | None, harmful: Batch | None) -> dict[tuple, Tensor]:
        """Answers to the primary batch and features of both, by (role, layer)."""
        roles = [(role, b[0]) for role, b in (("p", primary), ("h", harmful)) if b is not None]
        found: dict[tuple, Tensor] = {}
        if self.joint and len(roles) > 1:
            sizes = [len(inputs) for _, inputs in roles]
            asked = sum(map(len, self._asked(primary, harmful)))  # of the pass's rows the first,
            with self._followed(asked if self.objective.teacher else 0):  # where primary ones are
                logits, features = self.tapped(torch.cat([inputs for _, inputs in roles]))
            split = {k: dict(zip("ph", v.split(sizes), strict=True)) for k, v in features.items()}
            found[("logits",)] = logits.split(sizes)[0]
            found |= {(role, k): parts[role] for k, parts in split.items() for role in "ph"}
            return found
        for role, inputs in roles:
            follow = self._followed(len(inputs)) if role == "p" else nullcontext()
            with follow, _resting(self.tapped, role == "h" and not self.joint):
                logits, features = self.tapped(inputs)
            found |= {(role, layer): z for layer, z in features.items()}
            found.setdefault(("logits",), logits)
        return found

    def _followed(self, rows: int) -> AbstractContextManager[None]:
        """A pass whose first rows are those that the teacher is asked about next."""
        return nullcontext() if self.teacher is None else self.teacher.following(rows)

    def _asked(self, primary: Batch | None, harmful: Batch | None) -> list[Tensor]:
        """Inputs that the teacher is asked about: primary ones, and once a step harmful ones."""
        taught = primary if self.objective.teacher else None
        told = harmful if self.objective.recall and self._targets is None else None
        return [batch[0] for batch in (taught, told) if batch is not None]

    def _taught(
        self, primary: Batch | None, harmful: Batch | None
    ) -> tuple[tuple[Tensor, Tensor] | None, Tensor | None]:
        """The original's answers to the primary batch; harmful targets as the objective asks."""
        asked, teacher = self._asked(primary, harmful), None
        if self.teacher is not None and asked:
            asked = [torch.cat(asked)] if self.joint else asked  # as the model's own passes are
            parts = [part for inputs in asked for part in inputs.tensor_split(self.accumulate)]
            logits, features = map(torch.cat, zip(*map(self.teacher, parts), strict=True))
            rows = len(primary[0]) if self.objective.teacher and primary is not None else 0
            teacher = (logits[:rows], features[:rows]) if rows else None
            if len(features) > rows and harmful is not None:
                self._targets = recalled(features[rows:], harmful[1])
        if harmful is None:
            return teacher, None
        return teacher, harmful[1] if self._targets is None else self._targets

    def _view(
        self, answers: Mapping[tuple, Tensor], primary: Batch | None, harmful: Batch | None
    ) -> View:
        logits = answers[("logits",)]
        teacher, targets = self._taught(primary, harmful)
        return View(
            logits,
            logits.new_zeros(0) if primary is None else primary[1],
            {key[1]: z for key, z in answers.items() if key[0] == "p"},
            {key[1]: z for key, z in answers.items() if key[0] == "h"},
            logits.new_zeros(0) if targets is None else targets,
            teacher,
            self.head,
            self.smoothing,
            self.classify,
        )

    @contextmanager
    def _attacked(self, attacker: Attacker, harmful: Batch) -> Iterator[Callable[[], None]]:
        """Let the attacker move the parameters; put them back at the end.

        Yields a function that carries the gradient in ``.grad`` back to where the attacker
        started. The harmful head learns from the attacker's first gradient.
        """
        start = [p.detach().clone() for p in self.body]
        size = self._norm(start)
        path: list[tuple[list[Tensor], float]] = []
        loss = {"attack": 1.0}

        def gradient() -> list[Tensor]:
            self._clear()
            self._backward(None, harmful, lambda view: {"attack": attacker.loss(view)}, loss)
            return [g.clone() for g in self._grads()]

        for index in range(attacker.steps):
            with self._learning_head(index == 0):
                gradients = gradient()
            norm = self._norm(gradients)
            factor = attacker.rate * size / norm if norm > 0 else 0.0
            path.append(([p.detach().clone() for p in self.body], factor))
            with torch.no_grad():
                for p, g in zip(self.body, gradients, strict=True):
                    p.sub_(g, alpha=factor)
        self._clear()

        def carry() -> None:
            if attacker.order == 1:
                return
            v = [g.clone() for g in self._grads()]
            for place, factor in reversed(path):
                norm = self._norm(v)
                if norm == 0:
                    break
                h = DIFFERENCE * attacker.rate * size / norm
                sides = []
                for sign in (1.0, -1.0):
                    self._place([p + sign * h * d for p, d in zip(place, v, strict=True)])
                    sides.append(gradient())
                v = [d - factor * (a - b) / (2 * h) for d, a, b in zip(v, *sides, strict=True)]
            self._clear()
            for p, g in zip(self.body, v, strict=True):
                p.grad = g

        with self._learning_head(False):
            yield carry
        self._place(start)

    def _place(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(self.body, values, strict=True):
                p.copy_(value)

    @contextmanager
    def _learning_head(self, learns: bool) -> Iterator[None]:
        """Let the harmful head take one gradient step of its own, or hold it still."""
        if self.head is None:
            yield
            return
        self.head.requires_grad_(learns)
        yield
        if learns:
            scale = self._scale() if self.accumulate == 1 else 1.0  # parts share a plain backward
            with torch.no_grad():
                for p in self.head.parameters():
                    if p.grad is not None:
                        p.sub_(summed(p.grad) / world() / scale)
                        p.grad = None
        self.head.requires_grad_(False)


def _values(terms: Terms) -> dict[str, float]:
    """Values of terms, in one look at the device."""
    if not terms:
        return {}
    place = next(iter(terms.values())).device
    found = torch.stack([t.double().reshape(()).to(place) for t in terms.values()]).tolist()
    return dict(zip(terms, found, strict=True))


@contextmanager
def _resting(module: nn.Module, rest: bool) -> Iterator[None]:
    """Run in evaluation mode for a while, so that no statistics are taken."""
    awake = [m for m in module.modules() if m.training] if rest else []
    for m in awake:
        m.training = False
    yield
    for m in awake:
        m.training = True
