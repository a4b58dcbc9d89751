"""Gradient descent on least squares, known by its moments."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from immunis.theory.scale import unit


def line_search(hessian: Tensor, cross: Tensor, start: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the iterates w₀, w₁, ... of steepest descent on ``‖Zw − Y‖²``, forever.

    The loss is known by its moments: gradient ``g = Hw − B`` with ``H = ZᵀZ``, ``B = ZᵀY``,
    and the step that minimises it along g is ``‖g‖²/⟨g, Hg⟩`` (paper, section 5.1).

    Args:
        hessian: H (D×D), positive semi-definite.
        cross: B (D×C).
        start: w₀ (D×C); zero if left out.
    """
    w = torch.zeros_like(cross) if start is None else start.clone()
    largest, epsilon = hessian.abs().max(), len(hessian) * torch.finfo(hessian.dtype).eps
    while True:
        yield w
        gradient = hessian @ w - cross
        noise = epsilon * (largest * w.abs().sum(0).max() + cross.abs().max())
        if bool(gradient.abs().max() <= noise):  # the optimum: what is left is rounding
            continue
        way = unit(gradient)[0].to(gradient)  # where squares fit; their ratio is the same
        curvature = float((way * (hessian @ way)).sum())
        if curvature > 0:  # at the optimum the gradient is zero and w stays
            w = w - float(way.square().sum()) / curvature * gradient
