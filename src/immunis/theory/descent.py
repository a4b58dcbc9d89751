"""Gradient descent on least squares, known by its moments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.core.settings import whole
from immunis.theory.gram import Gram
from immunis.theory.scale import power_of_two
from immunis.theory.spectrum import Spectrum, eigh


def line_search(hessian: Tensor, cross: Tensor, start: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the iterates w₀, w₁, ... of steepest descent on ``‖Zw − Y‖²``, forever.

    Gradient ``g = Hw − B`` with ``H = ZᵀZ`` (D×D) and ``B = ZᵀY`` (D×C). The step ``‖g‖²/⟨g, Hg⟩``
    minimises the loss along g (paper, section 5.1). ``start`` is w₀, by default zero.
    """
    w = torch.zeros_like(cross) if start is None else start.clone()
    largest, epsilon = hessian.abs().max(), len(hessian) * torch.finfo(hessian.dtype).eps
    while True:
        yield w
        gradient = hessian @ w - cross
        noise = epsilon * (largest * w.abs().sum(0).max() + cross.abs().max())
        if bool(gradient.abs().max() <= noise):  # the optimum: what is left is rounding
            continue
        way = gradient / power_of_two(gradient)  # where squares fit; their ratio is the same
        curvature = float((way * (hessian @ way)).sum())
        if curvature > 0:  # at the optimum the gradient is zero and w stays
            w = w - float(way.square().sum()) / curvature * gradient


def norm_ratio_curve(moments: Gram, steps: int = 100) -> Tensor:
    """Return ``‖w_t − w*‖²/‖w₀ − w*‖²`` of exact line search, t = 0..steps (paper, eq. 10).

    Starts at w₀ = 0; w* is the least-squares solution of smallest norm, so directions that
    no data reaches do not count. ``moments`` come from ``gram(task, extractor)``.
    """
    steps = whole(steps, "steps")
    if not moments.cross().shape[1]:
        raise InputError("the moments hold no targets; a norm ratio needs some: gram(task).")
    values, vectors = eigh(moments.matrix())
    spectrum = Spectrum.of(moments)
    kept, cross = values[: spectrum.rank], vectors[:, : spectrum.rank].T @ moments.cross()
    optimum = cross / kept[:, None]  # in coordinates of the directions that data reaches
    size = optimum.square().sum()
    if not float(size) > 0:
        raise InputError("the targets are orthogonal to every feature: probing starts at its end.")
    path = itertools.islice(line_search(torch.diag(kept), optimum * kept[:, None]), steps + 1)
    return torch.stack([(w - optimum).square().sum() / size for w in path])
