"""A model in training, which gives the features of its layers beside its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.data.feed import run_model
from immunis.models.cut import Cut
from immunis.models.positions import Borders, logits_of


class WithFeatures(nn.Module):
    """A model that returns ``(answers, {layer: features})``, by hooks that stay until ``close``.

    Attributes:
        borders: where grids are cut; None for even ones. A training step draws them anew.
    """

    def __init__(self, cut: Cut, layers: Sequence[str] = ("",)) -> None:
        super().__init__()
        if cut.head is None:
            raise InputError("no linear head ends the model: add one, or name it with head=.")
        self.model, self.layers, self._pool = cut.model, tuple(layers), cut.pool
        self.borders: Borders | None = None
        self._found: dict[str, Any] = {}
        self._handles = cut.watch(layers, self._found)

    def forward(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the model once."""
        self._found.clear()
        answers = logits_of(run_model(self.model, inputs))
        found = {layer: self._found[layer] for layer in self.layers}
        features = {
            layer: self._pool(layer, z, answers, inputs, self.borders) for layer, z in found.items()
        }
        self._found.clear()
        return answers, features

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
