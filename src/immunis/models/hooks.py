"""A model with taps: its answers, and pooled features at chosen layers, in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.models.cut import Cut
from immunis.models.outputs import first_input, fitting, logits_of


class Tapped(nn.Module):
    """Returns ``(answers, {layer: features})``; close it to take the taps out again.

    The hooks stay for the life of the object, so that a compiled or wrapped model keeps them.
    """

    def __init__(self, cut: Cut, layers: Sequence[str] = ("",)) -> None:
        super().__init__()
        if cut.head is None:
            raise InputError(
                "the model has no linear head: its primary loss cannot be kept while it is "
                "trained. End it with nn.Linear, or name the head with head=."
            )
        self.model, self.layers, self._pool = cut.model, tuple(layers), cut.pool
        self._found: dict[str, Any] = {}
        self._handles = []
        for layer in self.layers:
            if layer:
                module = cut.model.get_submodule(layer)
                self._handles.append(module.register_forward_hook(self._after(layer)))
            else:
                module = cut.model.get_submodule(cut.head)
                hook = self._before(layer)
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _after(self, layer: str) -> Callable[..., None]:
        return lambda _, __, output: self._found.__setitem__(layer, output)

    def _before(self, layer: str) -> Callable[..., None]:
        return lambda _, *given: self._found.__setitem__(layer, first_input(*given))

    def forward(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the model once."""
        self._found.clear()
        answers = logits_of(self.model(fitting(self.model, inputs)))
        found = self._found
        features = {layer: self._pool(layer, found[layer], answers) for layer in self.layers}
        self._found.clear()
        return answers, features

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
