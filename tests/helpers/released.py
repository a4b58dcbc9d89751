"""The paper's released loop again, written naively from what its files do: the oracle.

A layer with a bias whose backward pass solves with the D×D Gram matrix of its inputs, eigenvalues
of D×D matrices, autograd and ``torch.optim.Adam``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Preconditioned(torch.autograd.Function):
    """``XWᵀ + b``; backwards the weight's gradient is solved with ``XᵀX + λI`` from the left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, ridge: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.ridge = ridge
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        gram = x.T @ x + ctx.ridge * torch.eye(x.shape[1], dtype=x.dtype)
        return None, torch.linalg.solve(gram, grad.T @ x), grad.sum(0), None


def extremes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """σ_min and σ_max as released: eigenvalues of ``S + 1e-6·I`` above 1e-6."""
    values = torch.linalg.eigvalsh(matrix + 1e-6 * torch.eye(len(matrix), dtype=matrix.dtype))
    return values[values > 1e-6].min(), values.max()


def kappa(z: Tensor) -> Tensor:
    """κ of eq. 1 of a batch: over the non-zero singular values."""
    sigma = torch.linalg.svdvals(z) ** 2
    kept = sigma[sigma > sigma.max() * z.shape[1] * torch.finfo(z.dtype).eps]
    return kept.max() / kept.min()


def task_loss(outputs: Tensor, targets: Tensor, settings: Any) -> Tensor:
    if settings.loss == "logistic":
        return functional.binary_cross_entropy_with_logits(outputs, targets)
    return torch.norm(targets - outputs, 2) ** 2 / len(targets)


def immu_loss(layer: nn.Linear, omega: Tensor, batch: Any, settings: Any, calls: int) -> Tensor:
    """``ImmuLoss.forward`` of ``utils/train_imagenet.py`` at its ``calls``-th call, λ_κ = 1."""
    x_p, y_p, x_h, y_h = batch
    z_p, z_h = layer(x_p), layer(x_h)
    loss = task_loss(z_p @ omega, y_p, settings)
    if settings.objective == "imma_released":
        other = task_loss(z_h @ omega, y_h, settings)
        return loss + other if calls // 2 == 0 else loss - other
    s_p, s_h = z_p.T @ z_p, z_h.T @ z_h
    if settings.objective == "r_ill_with_loss":
        ill = 1 / (torch.norm(s_h) ** 2 / (2 * z_p.shape[-1]) - extremes(s_h)[0] ** 2 / 2)
        return loss + settings.lambda_harmful * ill
    log_p, log_h = (most.log() - least.log() for least, most in map(extremes, (s_p, s_h)))
    return loss + settings.lambda_primary * log_p + settings.lambda_harmful / log_h


def objective(
    layer: nn.Linear, omega: Tensor, probe: Tensor, batch: Any, settings: Any, calls: int
) -> Tensor:
    if settings.objective in ("imma_released", "r_ill_with_loss", "opt_kappa_released"):
        return immu_loss(layer, omega, batch, settings, calls)
    x_p, y_p, x_h, y_h = batch
    if settings.objective == "imma":
        theta = [value for value in layer.parameters() if value.requires_grad]
        for _ in range(30):
            inner = task_loss(functional.linear(x_h, *theta) @ probe, y_h, settings)
            moves = torch.autograd.grad(inner, theta, create_graph=True)
            theta = [value - 1e-4 * move for value, move in zip(theta, moves, strict=True)]
        primary = task_loss(functional.linear(x_p, *theta) @ omega.detach(), y_p, settings)
        return primary - task_loss(functional.linear(x_h, *theta) @ probe, y_h, settings)
    if settings.objective == "opt_kappa":
        return kappa(layer(x_p)) - kappa(layer(x_h))
    if settings.objective == "opt_log_kappa":
        ends = [extremes(z.T @ z) for z in (layer(x_p), layer(x_h))]
        logs = [most.log() - least.log() for least, most in ends]
        return logs[0] - logs[1]
    k = settings.width
    z_h = Preconditioned.apply(x_h, layer.weight, layer.bias, settings.ridge_harmful)
    s_h = z_h.T @ z_h
    ill = 1 / (torch.norm(s_h) ** 2 / (2 * k) - extremes(s_h)[0] ** 2 / 2)
    if settings.objective == "r_ill":
        return settings.lambda_harmful * ill
    z_p = Preconditioned.apply(x_p, layer.weight, layer.bias, settings.ridge_primary)
    s_p = z_p.T @ z_p
    well = extremes(s_p)[1] ** 2 / 2 - torch.norm(s_p) ** 2 / (2 * k)
    loss = task_loss(layer(x_p) @ omega, y_p, settings)
    return loss + settings.lambda_primary * well + settings.lambda_harmful * ill


def released_run(start: Any, batches: Iterable[Any], settings: Any) -> tuple[Tensor, ...]:
    """Step over the batches; an item is the batches of all processes. Return W, b and ω."""
    layer = nn.Linear(*start.weight.shape, dtype=torch.float64)
    layer.weight.data.copy_(start.weight)
    layer.bias.data.copy_(start.bias)
    omega = nn.Parameter(start.omega.clone())
    if not settings.bias:
        layer.bias.data.zero_()
        layer.bias.requires_grad_(False)
    trained = [value for value in (*layer.parameters(), omega) if value.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=settings.step)
    for calls, parts in enumerate(batches, 1):
        optimizer.zero_grad()
        for batch in parts:  # gradients of processes are averaged
            loss = objective(layer, omega, start.probe, batch, settings, calls)
            (loss / len(parts)).backward()
        optimizer.step()
    return layer.weight.detach(), layer.bias.detach(), omega.detach()
