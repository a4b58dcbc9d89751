"""The original model beside the one in training: it takes over what that one computes anyway.

Below the first trained layer a student computes what its original does. The teacher, a frozen
copy of the original, takes the last such output from the student's own forward pass over the
same rows and runs only what comes after: of a ViT-B with its last block in training, 1/12.

Which output that is, a few rows and NaN tell, for NaN goes wherever a value is read. With NaN for
every trained parameter, a frozen module's output that stays as it was depends on none of them.
With NaN for all such outputs but one, answers and features that stay as they were depend on
nothing else below: no skip connection goes past it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from immunis.models.cut import Cut
from immunis.models.hooks import Tapped

ROWS = 3  # to try on


class Teacher:
    """The original's answers and features, without gradient, in full until ``share`` is called.

    Args:
        cut: the original; it is copied.
        fabric: Lightning Fabric, whose device and precision are used.
    """

    def __init__(self, cut: Cut, fabric: Any) -> None:
        self._cut, self._fabric = cut.copy(), fabric
        self._cut.model.to(fabric.device).eval().requires_grad_(False)
        if fabric.device.type == "cuda":  # as the student's, whose outputs it may read
            self._cut.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._lender: nn.Module | None = None
        self._last, self._blanks = "", dict[str, Tensor]()
        self._lent: tuple[Tensor, int] | None = None
        self._checked = False

    @property
    def shares(self) -> bool:
        """Whether anything is taken over."""
        return self._lender is not None

    def share(self, student: nn.Module, inputs: Tensor) -> None:
        """Take over what a student computes in the passes marked by ``following``.

        The student must hold the original's frozen parameters, in evaluation mode where they are,
        and run module by module: not compiled, nor sharded. Where nothing below its trained
        layers is frozen, no one output carries all of it, parameters have two names, or the model
        refuses NaN, nothing is shared. Each process decides for itself: answers are the same
        either way, and no sums are taken here.
        """
        frozen = [name for name, module in student.named_modules() if name and _fixed(module)]
        every = [p for _, p in student.named_parameters(remove_duplicate=False)]
        tied = len(every) > len(set(every))  # which ``functional_call`` may leave changed
        if all(p.requires_grad for p in every) or tied or not frozen:
            return
        inputs = inputs[:ROWS].to(self._fabric.device)
        try:
            self._last, self._blanks = self._search(student, frozen, inputs)
        except Exception:  # a model may refuse NaN in any way
            return
        self._lender = student.get_submodule(self._last) if self._last else None

    def _search(
        self, student: nn.Module, frozen: Sequence[str], inputs: Tensor
    ) -> tuple[str, dict[str, Tensor]]:
        """Name of the last output that carries all below it; blanks for it and those before."""
        trained = {name for name, p in student.named_parameters() if p.requires_grad}
        ink = {
            f"model.{name}": torch.full_like(p, math.nan)
            for name, p in self._cut.model.named_parameters()
            if name in trained
        }
        answers, clean = self._watched(frozen, inputs)
        _, inked = self._watched(frozen, inputs, ink)
        _, fewer = self._watched(frozen, inputs[1:])  # what does not follow the rows is not there
        same = clean.keys() & inked.keys() & fewer.keys()
        free = [n for n, z in clean.items() if n in same and agree([inked[n]], [z])]
        outer = [n for n in free if not any(n.startswith(f"{other}.") for other in free)]
        blanks = {name: _blank(clean[name]) for name in outer}
        for count in range(len(outer), 0, -1):
            last = outer[count - 1]
            given = {name: blanks[name] for name in outer[:count]} | {last: clean[last]}
            if agree(self._run(inputs, given), answers):
                return last, {name: blanks[name] for name in outer[:count]}
        return "", {}

    def _watched(
        self, names: Sequence[str], inputs: Tensor, parameters: Mapping[str, Tensor] | None = None
    ) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
        """Answers, and what those modules gave that ran once, in the order in which they ended."""
        found: dict[str, list[Any]] = {}

        def keep(name: str, output: Any) -> None:
            output = output.clone() if isinstance(output, Tensor) else None
            found.setdefault(name, []).append(output)

        handles = [
            self._cut.model.get_submodule(name).register_forward_hook(
                lambda _, __, output, name=name: keep(name, output)
            )
            for name in names
        ]
        try:
            answers = self._run(inputs, {}, parameters)
        finally:
            for handle in handles:
                handle.remove()
        once = {name: outputs[0] for name, outputs in found.items() if len(outputs) == 1}
        rows = len(inputs)
        return answers, {n: z for n, z in once.items() if z is not None and z.shape[:1] == (rows,)}

    @contextmanager
    def following(self, rows: int) -> Iterator[None]:
        """Mark a pass of the student whose first ``rows`` the teacher will be asked about."""
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
        """Answers and features of the original.

        The first that rest on a student's output are compared with those of a whole pass; where
        they differ, or cannot be had, nothing is taken over from then on. An output is left alone
        that the student has changed in place since.
        """
        lent, self._lent = self._lent, None
        if lent is None or len(lent[0]) != len(inputs) or lent[0]._version != lent[1]:
            logits, features = self._run(inputs, {})
            return logits.float(), features.float()
        given = {n: z[:1].expand(len(inputs), *z.shape[1:]) for n, z in self._blanks.items()}
        given |= {self._last: lent[0]}
        if not self._checked:
            self._checked = True
            if not self._suffices(inputs, given):
                self._lender, given = None, {}
        logits, features = self._run(inputs, given)
        return logits.float(), features.float()

    def _suffices(self, inputs: Tensor, given: Mapping[str, Tensor]) -> bool:
        """Whether a pass with what is given says what a whole one does."""
        try:
            return agree(self._run(inputs, given), self._run(inputs, {}))
        except Exception:  # such as a shape that does not fit
            return False

    def _run(
        self,
        inputs: Tensor,
        given: Mapping[str, Tensor],
        parameters: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One forward pass in which modules return what is given for them."""
        tapped = Tapped(self._cut)
        try:
            with torch.no_grad(), self._fabric.autocast(), _instead(self._cut.model, given):
                call = torch.func.functional_call
                logits, features = (
                    call(tapped, dict(parameters), (inputs,)) if parameters else tapped(inputs)
                )
        finally:
            tapped.close()  # hooks that stay would keep the copy alive
        return logits, features[""]


def agree(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Whether ``‖a − b‖ ≤ t·‖b‖`` for every pair; never where one is not finite.

    t is four units of the coarsest precision among them, and a thousandth at least.
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
    """Whether nothing in a module is trained, and its ``forward`` is that of its class."""
    return "forward" not in vars(module) and not any(p.requires_grad for p in module.parameters())


def _blank(like: Tensor) -> Tensor:
    """A tensor of that shape, without memory of its own, that shows wherever it is read."""
    value = math.nan if like.is_floating_point() else 0
    return torch.full((), value, dtype=like.dtype, device=like.device).expand(like.shape)


@contextmanager
def _instead(model: nn.Module, given: Mapping[str, Tensor]) -> Iterator[None]:
    """Let modules return what is given for them, without running."""
    modules = [model.get_submodule(name) for name in given]
    try:
        for module, output in zip(modules, given.values(), strict=True):
            module.forward = lambda *_, _output=output, **__: _output
        yield
    finally:
        for module in modules:
            vars(module).pop("forward", None)
