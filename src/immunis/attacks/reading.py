"""What is read of a copy that an attack has changed: more than its last features.

Once a defence is undone, un-pooled maps or earlier stages may show what a mean does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from immunis.attacks.arrays import NUMBERS, Arrays, array_of, read_layers, tensor
from immunis.attacks.contract import Arena, Made, Step
from immunis.data.loader import spread
from immunis.models.cut import Cut
from immunis.models.positions import MAPS
from immunis.theory.feature_maps import mean_and_scale, principal_directions

LAST, ALL = "last features", "all stages"  # readings that are no layers
WIDEST, ROWS = 1024, 2048  # columns: more are projected on principal directions of so many rows
Project = Callable[[Tensor], Tensor]


def readings(arena: Arena) -> tuple[str, ...]:
    """Return the values of the setting ``read``, the last features first.

    The others are every stage, the last one's un-pooled maps or tokens, and all stages together.
    """
    stages = arena.cut.stages if len(arena.cut.stages) > 1 else ()
    maps = [stage + MAPS for stage in arena.cut.positioned[-1:]]
    return (LAST, *stages, *maps, *([ALL] if stages else []))


def reread(arena: Arena, cut: Cut, spent: Step | None = None) -> Made:
    """Return what a changed copy gives at every reading, in one pass, and what changing it cost."""
    layers: dict[str, Project] = {}
    for name in ("", *(name for name in readings(arena)[1:] if name != ALL)):
        layers[name] = _narrow(arena, cut, name) if name.endswith(MAPS) else lambda z: z
    train, test = (read_layers(cut, part.inputs, layers) for part in (arena.train, arena.test))
    found = {name: (array_of(train[name]), array_of(test[name])) for name in layers}
    found[LAST] = found.pop("")
    if ALL in readings(arena):
        found[ALL] = side_by_side(arena, [found[stage] for stage in arena.cut.stages])
    return Made(found, *(spent[:3] if spent else ()))


def side_by_side(arena: Arena, parts: Sequence[Arrays]) -> Arrays:
    """Return standardised features of several layers side by side, projected if they are wide."""
    fit, columns = torch.from_numpy(arena.rows[0]), []
    for train, test in (map(tensor, part) for part in parts):
        mean, scale = mean_and_scale(train[fit])
        columns.append([(values - mean) / scale for values in (train, test)])
    train, test = (torch.cat(of, 1) for of in zip(*columns, strict=True))
    if train.shape[1] > WIDEST:
        project = _projection(train[spread(fit, ROWS)])
        train, test = project(train), project(test)
    return train.numpy(), test.numpy()


def _narrow(arena: Arena, cut: Cut, layer: str) -> Project:
    """Return what makes a layer's features narrow, by rows to fit on that are evenly spread."""
    inputs, fit = arena.train.inputs, torch.from_numpy(arena.rows[0])
    width = read_layers(cut, inputs[:1], {layer: lambda z: z})[layer].shape[1]
    if width <= WIDEST:
        return lambda z: z
    some = spread(fit, max(WIDEST, min(ROWS, NUMBERS // width))).numpy()
    rows = read_layers(cut, inputs, {layer: lambda z: z}, some)[layer]
    device = cut.example.device
    return _projection(rows.to("cpu" if device.type == "mps" else device))


def _projection(rows: Tensor) -> Project:
    """Return the map of features on the principal directions of some rows, if they have any."""
    if not bool(rows.isfinite().all()):
        return lambda z: z[:, :WIDEST]
    mean, directions = principal_directions(rows, WIDEST)
    return lambda z: (z.to(mean) - mean) @ directions
