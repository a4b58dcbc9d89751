"""The model in training and its original, which reuses what the model in training computes anyway.

The teacher, a frozen copy of the original, takes the last output below the first trained layer from
the student's pass over the same rows, and runs only what comes after it. NaN shows which output
that is. NaN in every trained parameter leaves a frozen module's output unchanged if it depends on
none of them. NaN in all such outputs except one leaves answers and features unchanged if no skip
connection bypasses that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.models.cut import OUTPUT, Cut, logits_of, run_model

ROWS = 3  # to search on


class WithFeatures(nn.Module):
    """A model that returns ``(answers, {layer: features})``, by hooks that stay until ``close``."""

    def __init__(self, cut: Cut, layers: Sequence[str] = ("",)) -> None:
        super().__init__()
        if cut.head is None:
            raise InputError("no linear head ends the model: add one, or name it with head=.")
        self.model, self.layers, self._pool = cut.model, tuple(layers), cut.pool
        self._found: dict[str, Any] = {}
        self._handles = cut.watch(layers, self._found)

    def forward(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the model once."""
        self._found.clear()
        answers = logits_of(run_model(self.model, inputs))
        features = {layer: self._pool(layer, self._found[layer], answers) for layer in self.layers}
        self._found.clear()
        return answers, features

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


class Teacher:
    """Return the original's answers and features, without gradient, in Fabric's precision."""

    def __init__(self, cut: Cut, fabric: Any) -> None:
        self._cut, self._fabric = cut.copy(), fabric
        self._cut.model.to(fabric.device).eval().requires_grad_(False)
        if fabric.device.type == "cuda":  # as the student, whose outputs it reads
            self._cut.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._lender: nn.Module | None = None
        self._last, self._blanks = "", dict[str, Tensor]()
        self._lent: tuple[Tensor, int] | None = None
        self._checked = False

    @property
    def shares(self) -> bool:
        """Return True if the teacher reuses an output of the student."""
        return self._lender is not None

    def share(self, student: nn.Module, inputs: Tensor) -> None:
        """Reuse what a student in evaluation mode computes in passes marked by ``following``.

        The student must not be compiled or sharded. Nothing is shared if no single output carries
        everything below, if a parameter has two names, or if the model refuses NaN.
        """
        every = [p for _, p in student.named_parameters(remove_duplicate=False)]
        if all(p.requires_grad for p in every) or len(every) > len(set(every)):
            return
        frozen = [name for name, module in student.named_modules() if name and _fixed(module)]
        trained = [name for name, p in student.named_parameters() if p.requires_grad]
        try:
            found = self._search(frozen, trained, inputs[:ROWS].to(self._fabric.device))
        except Exception:  # a model may refuse NaN in any way
            return
        if found:
            self._blanks, self._last = found, list(found)[-1]
            self._lender = student.get_submodule(self._last)

    def _search(
        self, frozen: Sequence[str], trained: Sequence[str], inputs: Tensor
    ) -> dict[str, Tensor]:
        """Return NaN for the last output that carries everything below it and those before it."""
        answers, clean = self._watched(frozen, inputs)
        _, fewer = self._watched(frozen, inputs[1:])  # drops outputs that do not follow the rows
        parameters = [self._cut.model.get_parameter(name) for name in trained]
        kept = [parameter.detach().clone() for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.fill_(math.nan)
            _, inked = self._watched(frozen, inputs)
        finally:
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
        same = clean.keys() & inked.keys() & fewer.keys()
        free = [n for n, z in clean.items() if n in same and agree([inked[n]], [z])]
        outer = [n for n in free if not any(n.startswith(f"{other}.") for other in free)]
        for count in range(len(outer), 0, -1):
            blanks = {name: _blank(clean[name]) for name in outer[:count]}
            last = outer[count - 1]
            if agree(self._run(inputs, blanks | {last: clean[last]}), answers):
                return blanks
        return {}

    def _watched(
        self, names: Sequence[str], inputs: Tensor
    ) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
        """Return answers, and the outputs of modules that ran once, in the order they ended."""
        found: dict[str, list[Any]] = {}
        modules = [(name, self._cut.model.get_submodule(name)) for name in names]

        def keep(name: str, output: Any) -> None:
            rows = isinstance(output, Tensor) and output.shape[:1] == (len(inputs),)
            found.setdefault(name, []).append(output.clone() if rows else None)

        handles = [
            module.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
            for name, module in modules
        ]
        try:
            answers = self._run(inputs, {})
        finally:
            for handle in handles:
                handle.remove()
        return answers, {n: z[0] for n, z in found.items() if len(z) == 1 and z[0] is not None}

    @contextmanager
    def following(self, rows: int) -> Iterator[None]:
        """Mark a pass of the student; the teacher is asked about its first ``rows`` next."""
        self._lent = None
        if self._lender is None:
            yield
            return
        blank = self._blanks[self._last]

        def keep(_: nn.Module, __: Any, output: Tensor) -> None:
            alike = output.dtype == blank.dtype and output.shape[1:] == blank.shape[1:]
            if alike and not output.requires_grad:
                self._lent = output.detach()[:rows], output._version

        handle = self._lender.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers and features of the original.

        The first shared result is compared with that of a whole pass; if they differ, sharing
        ends. An output that the student has changed in place is not used.
        """
        lent, self._lent = self._lent, None
        given: dict[str, Tensor] = {}
        if lent is not None and len(lent[0]) == len(inputs) and lent[0]._version == lent[1]:
            given = {n: z[:1].expand(len(inputs), *z.shape[1:]) for n, z in self._blanks.items()}
            given[self._last] = lent[0]
            if not self._checked and not self._suffices(inputs, given):
                self._lender, given = None, {}
            self._checked = True
        logits, features = self._run(inputs, given)
        return logits.float(), features.float()

    def _suffices(self, inputs: Tensor, given: Mapping[str, Tensor]) -> bool:
        """Return True if a pass with the given outputs agrees with a whole pass."""
        try:
            return agree(self._run(inputs, given), self._run(inputs, {}))
        except Exception:  # such as a shape that does not fit
            return False

    def _run(self, inputs: Tensor, given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return answers and features of a pass in which modules return what is given."""
        modules = {name: self._cut.model.get_submodule(name) for name in given}
        try:
            for name, module in modules.items():
                module.forward = lambda *_, _output=given[name], **__: _output
            with torch.no_grad(), self._fabric.autocast():
                found = self._cut.capture(inputs, ("", OUTPUT))
                features = self._cut.pool("", found[""], found[OUTPUT])
        finally:
            for module in modules.values():
                vars(module).pop("forward", None)
        return logits_of(found[OUTPUT]), features


def agree(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Return True if ``‖a − b‖ ≤ t·‖b‖`` for every pair; False if a value is not finite.

    t is four units of the coarsest precision among them, and at least 1/1000.
    """
    kinds = [b.dtype for b in wanted if b.is_floating_point()]
    tolerance = max([1e-3, *(4 * torch.finfo(kind).eps for kind in kinds)])

    def near(a: Tensor, b: Tensor) -> bool:
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        size = b.float().abs().max()
        a, b = a.float() / size, b.float() / size
        return bool((a - b).norm() <= tolerance * b.norm())

    return all(near(a, b) for a, b in zip(found, wanted, strict=True))


def _fixed(module: nn.Module) -> bool:
    """Return True if nothing in a module is trained and its ``forward`` is that of its class."""
    return "forward" not in vars(module) and not any(p.requires_grad for p in module.parameters())


def _blank(like: Tensor) -> Tensor:
    """Return a tensor of that shape, filled with one shared NaN (0 for integers)."""
    value = math.nan if like.is_floating_point() else 0
    return torch.full((), value, dtype=like.dtype, device=like.device).expand(like.shape)
