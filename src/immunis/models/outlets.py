"""Where what a stage gives is complete: behind the norm, the activation and the pooling after it.

The output of a bare convolution is nearly a fixed linear map of what goes in. No defence can make
it unreadable, and a probe of it does not see what its activation shows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.models.cut import Cut
from immunis.models.influence import feeds
from immunis.models.positions import tensor_of

NOISY = nn.modules.dropout._DropoutNd  # nothing is read behind it while a network trains


def outlets(whole: Cut, example: Tensor) -> dict[str, str]:
    """Return where stages without an activation inside are read instead, by stage.

    That is the last of the norms, activations and pools that follow, one on the other's output,
    before the next stage begins. If a function comes last (``relu(self.norm(self.conv(x)))``), it
    is the next stage's input, ``"NAME:in"``. What changes the channels, or leaves one position of
    several, does not count.
    """
    found: dict[str, str] = {}
    entered: dict[str, str] = {}
    stage, last, form = "", None, None  # the bare stage that ended last, and what comes of it

    def form_of(output: Any) -> tuple[int, bool, int] | None:
        try:
            samples, positions, channels = whole.unpooled(stage, tensor_of(output)).shape
        except InputError:
            return None
        return samples, positions > 1, channels

    def enter(name: str, given: tuple[Any, ...]) -> None:
        begins = name in whole.stages and last is not None and bool(given)
        if begins and given[0] is not last and form_of(given[0]) == form:
            entered[stage] = f"{name}:in"

    def leave(name: str, module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        nonlocal stage, last, form
        if name in whole.stages:
            stage, form = name, form_of(output) if _is_bare(module) else None
            last = None if form is None else output
        elif last is not None and given and given[0] is last and form_of(output) == form:
            inside = any(name.startswith(f"{other}.") for other in whole.stages)
            if not inside and all(p.squeeze().ndim <= 1 for p in module.parameters()):
                last = output
                if not isinstance(module, NOISY | nn.Identity):
                    found[stage] = name

    handles = []
    for name, module in whole.model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda _, x, n=name: enter(n, x)))
        handles.append(module.register_forward_hook(lambda m, x, z, n=name: leave(n, m, x, z)))
    try:
        with torch.no_grad():
            whole.capture(example, ())
    finally:
        for handle in handles:
            handle.remove()

    def reaches(stage: str, place: str) -> bool:  # else the next stage stands beside this one
        return feeds(whole.model, stage, lambda: tensor_of(whole.capture(example, [place])[place]))

    return found | {name: place for name, place in entered.items() if reaches(name, place)}


def _is_bare(stage: nn.Module) -> bool:
    """Return True if every layer of a stage has parameters, so that no activation is among them."""
    layers = [part for part in stage.modules() if not any(True for _ in part.children())]
    return all(any(True for _ in layer.parameters()) for layer in layers)
