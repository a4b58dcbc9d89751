"""Undo scaling: merge linear layers in a row, balance the scales of others, then fine-tune.

A defence may hide by a layer that multiplies some directions and a later one that divides them
again: the function is the same, and every usable step of descent diverges. What is done here
changes the function no more, and leaves no such pair. BatchNorm keeps normalising, since networks
train better with it, but the scale it removes is folded into the layer before it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from immunis.attacks.arrays import tensor
from immunis.attacks.contract import Arena, Attack, Curve, NotApplicableError, Settings
from immunis.attacks.tuning import TUNING, Network, tune
from immunis.models.cut import Cut
from immunis.models.find_cut import NORMS

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LINEAR = (nn.Linear, *CONVOLUTIONS)
EXAMPLES, SWEEPS = 8, 3  # scales reach their balance along a chain of layers
SAME, CHANGED = 1e-3, 0.05  # how far answers may move, how far a scale must, relatively
LEAST = 0.01  # of the median deviation of channels
Change = Callable[[nn.Module, str, str], bool]


def run(arena: Arena, settings: Settings) -> Curve:
    """Fold a copy, then train every parameter and a new head."""
    cut = arena.cut.copy()
    if not fold(cut, tensor(arena.train.inputs[:EXAMPLES])):
        raise NotApplicableError("no two layers in a row could be merged or balanced")
    network = Network(arena, cut)
    return tune(arena, network, network.body.parameters(), settings)


@torch.no_grad()
def fold(cut: Cut, example: Tensor) -> int:
    """Merge and balance a model's layers in place; return how many pairs changed.

    Every change is tried on a few inputs, and taken back if the model's answers change: what lies
    between two layers may not pass a scale on, or another layer may read it too.
    """
    model, before, changed = cut.model, cut.answers(example), 0
    refused: set[tuple[Change, str, str]] = set()  # not to be tried again

    def attempt(change: Change, one: str, two: str) -> int:
        if (change, one, two) in refused:
            return 0
        kept = {name: copy.deepcopy(model.get_submodule(name)) for name in (one, two)}
        if not change(model, one, two):
            return 0
        far = (cut.answers(example) - before).abs().max()
        if bool(far <= SAME * before.abs().max()):
            return 1
        refused.add((change, one, two))
        for name, layer in kept.items():
            model.set_submodule(name, layer)
        return 0

    for _ in range(SWEEPS):
        so_far = changed
        for (one, _, given), (two, taken, _) in pairwise(_in_order(cut, example)):
            if given is taken and two != cut.head:
                changed += attempt(_merge, one, two)
        for (one, _, given), (two, taken, _) in pairwise(_in_order(cut, example)):
            if given is taken:
                changed += attempt(_absorb, one, two)
            changed += attempt(_balance, one, two)
        if changed == so_far:
            break
    return changed


def _in_order(cut: Cut, example: Tensor) -> list[tuple[str, Any, Any]]:
    """Return name, input and output of the layers that ran once, in the order they ran."""
    ran: list[tuple[str, Any, Any]] = []
    handles = [
        module.register_forward_hook(lambda _, x, y, name=name: ran.append((name, *x[:1], y)))
        for name, module in cut.model.named_modules()
        if isinstance(module, (*LINEAR, *NORMS))
    ]
    try:
        cut.answers(example)
    finally:
        for handle in handles:
            handle.remove()
    times = Counter(name for name, *_ in ran)
    return [each for each in ran if times[each[0]] == 1 and len(each) == 3]


def _layers(model: nn.Module, *names: str) -> list[Any]:
    return [model.get_submodule(name) for name in names]


def _merge(model: nn.Module, one: str, two: str) -> bool:
    """Put the product of two linear maps in place of the second; return False if there is none."""
    first, second = _layers(model, one, two)
    pointwise = isinstance(second, CONVOLUTIONS) and second.weight[0, 0].numel() == 1
    pointwise = pointwise and second.groups == 1 and set(second.stride) == {1}
    if isinstance(first, CONVOLUTIONS):
        fits = pointwise and first.groups == 1 and not any(_padding(second))
    else:
        fits = isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    if not fits:
        return False
    after = second.weight.double().flatten(1)
    weight = torch.einsum("oi,i...->o...", after, first.weight.double())
    bias = weight.new_zeros(len(weight)) if second.bias is None else second.bias.double()
    if first.bias is not None:
        bias = bias + after @ first.bias.double()
    merged = copy.deepcopy(first)
    merged.weight = nn.Parameter(weight.to(first.weight))
    merged.bias = nn.Parameter(bias.to(first.weight))
    setattr(merged, "out_channels" if pointwise else "out_features", len(weight))
    model.set_submodule(one, nn.Identity())
    model.set_submodule(two, merged)
    return True


def _absorb(model: nn.Module, one: str, two: str) -> bool:
    """Fold the deviation that a BatchNorm divides by into the layer before it."""
    first, norm = _layers(model, one, two)
    batchnorm = isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_var is not None
    if not isinstance(first, LINEAR) or not batchnorm or len(first.weight) != norm.num_features:
        return False
    deviation = (norm.running_var + norm.eps).sqrt()
    scale = deviation.clamp(min=LEAST * deviation.median())  # a dead channel stays small
    if not _differs(scale):
        return False
    _multiply(first, 1 / scale)
    norm.running_mean /= scale
    norm.running_var.copy_(((deviation / scale) ** 2 - norm.eps).clamp(min=0))
    return True


def _balance(model: nn.Module, one: str, two: str) -> bool:
    """Give each channel's outgoing and incoming weights equal norms."""
    first, second = _layers(model, one, two)
    if getattr(first, "weight", None) is None or not isinstance(second, LINEAR):
        return False
    rows = first.weight.double().reshape(len(first.weight), -1).norm(dim=1)
    columns = second.weight.double().transpose(0, 1).flatten(1).norm(dim=1)
    if len(columns) % len(rows):  # grouped, or not its reader
        return False
    columns = columns.reshape(len(rows), -1)
    wide, columns = columns.shape[1], columns.norm(dim=1)
    alive = (rows > 0) & (columns > 0)
    scale = torch.where(alive, columns / rows, 1.0).sqrt()
    if not _differs(scale):
        return False
    _multiply(first, scale)
    inverse = (1 / scale).repeat_interleave(wide)
    second.weight *= inverse.reshape(1, -1, *[1] * (second.weight.ndim - 2)).to(second.weight)
    return True


def _differs(scale: Tensor) -> bool:
    return bool((scale.log().abs() > CHANGED).any())


def _multiply(layer: Any, scale: Tensor) -> None:
    """Multiply each output of a layer."""
    scale = scale.to(layer.weight)
    layer.weight *= scale.reshape(-1, *[1] * (layer.weight.ndim - 1))
    if layer.bias is not None:
        layer.bias *= scale


def _padding(layer: Any) -> tuple[int, ...]:
    return () if layer.padding == "valid" else tuple(layer.padding)


ATTACK = Attack(run, TUNING, (), place=13)
