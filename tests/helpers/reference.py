"""Naive oracles: the paper's formulas written down as they stand, slow and obvious.

Fast paths in ``src`` are stepped together with these in tests and timed against them in
``benchmarks``. Nothing here is imported by the package.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


def r_well(s: Tensor) -> Tensor:
    sigma = torch.linalg.svdvals(s)
    return sigma.max() ** 2 / 2 - (s**2).sum() / (2 * min(s.shape))


def r_ill(s: Tensor, rank: int | None = None) -> Tensor:
    sigma = torch.linalg.svdvals(s)
    k = len(sigma) if rank is None else rank
    return 1 / ((s**2).sum() / (2 * k) - sigma[k - 1] ** 2 / 2)


def kappa(s: Tensor) -> Tensor:
    sigma = torch.linalg.svdvals(s)
    return sigma.max() / sigma.min()


def rho(z: Tensor, y: Tensor, ridge: float, floor: float = 0.0) -> Tensor:
    z, y = z - z.mean(0), y - y.mean(0)
    n, d = z.shape
    zz, zy = z.T @ z / n, z.T @ y / n
    damped = zz + (ridge * zz.trace() / d + floor) * torch.eye(d, dtype=z.dtype)
    return (zy.T @ torch.linalg.inv(damped) @ zy).trace() / ((y**2).sum() / n)


def paper_well_interval(sigma: Tensor, dimension: int) -> float:
    """Upper end of the step interval printed in the paper's theorem 4.3(1)."""
    s1, s2 = float(sigma[0]), float(sigma[1])
    return min(1 / ((1 - 1 / dimension) * s1), ((s1 * s2) ** 0.5 - s2) / (2 / dimension * s2**2))


def paper_ill_interval(sigma: Tensor) -> float:
    """Upper end printed in theorem 4.3(2); infinite where its denominator is not positive."""
    k = len(sigma)
    gap = float((sigma**2).sum() / (2 * k) - sigma[-1] ** 2 / 2)
    denominator = 1 - 2 * float(sigma[-1]) / k
    return gap**2 / denominator if denominator > 0 else float("inf")


def eigenvalues_after_ill_step(sigma: Tensor, step: float) -> Tensor:
    """``σᵢ(1 + 2rσᵢ/k)²``, ``r = η·R_ill²``; the m smallest: ``σ_k(1 − 2r(1/m − 1/k)σ_k)²``."""
    k, low = len(sigma), sigma <= sigma[-1] * (1 + 1e-12)
    if bool(low.all()):
        return sigma
    gap = ((sigma - sigma[-1]) * (sigma + sigma[-1])).mean() / 2
    slope = (low.to(sigma) / int(low.sum()) - 1 / k) / gap**2
    return sigma * (1 - 2 * step * slope * sigma) ** 2


def paper_singular_values(theta: Tensor, gram: Tensor) -> Tensor:
    """Proposition 3.2's formula for the singular values of θᵀKθ."""
    u, s, _ = torch.linalg.svd(theta)
    gamma, q = torch.linalg.eigh(gram)
    return ((s[:, None] * (u.T @ q) * gamma.sqrt()) ** 2).sum(1).sort(descending=True).values


class NaiveDummyLinear(torch.autograd.Function):
    """The paper's dummy layer by explicit inverse, on the correct or on its printed side."""

    @staticmethod
    def forward(ctx, x, weight, ridge, printed_side):
        ctx.save_for_backward(x, weight)
        ctx.ridge, ctx.printed_side = ridge, printed_side
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        plain = grad.T @ x
        inverse = torch.linalg.inv(x.T @ x + ctx.ridge * torch.eye(x.shape[1], dtype=x.dtype))
        preconditioned = inverse @ plain if ctx.printed_side else plain @ inverse
        return grad @ weight, preconditioned, None, None


def naive_algorithm_1(
    x_p: Tensor,
    y_p: Tensor,
    x_h: Tensor,
    *,
    theta: Tensor,
    epochs: int,
    step: float,
    lambda_p: float,
    lambda_h: float,
    batch: int = 64,
    adam: bool = True,
    ridge: float = 1.0,
    seed: int = 0,
    max_steps: int | None = None,
) -> Tensor:
    """Algorithm 1 as the pseudo-code runs it: per batch, by autograd through decompositions."""
    generator = torch.Generator().manual_seed(seed)
    weight = theta.T.clone().requires_grad_()
    omega = torch.randn(theta.shape[0], y_p.shape[1], generator=generator, dtype=theta.dtype)
    omega.requires_grad_()
    maker = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = maker([weight, omega], lr=step)
    taken = 0
    for _ in range(epochs):
        count = max(len(x_p), len(x_h))
        rows_p = torch.randperm(len(x_p), generator=generator).repeat(-(-count // len(x_p)))
        rows_h = torch.randperm(len(x_h), generator=generator).repeat(-(-count // len(x_h)))
        for start in range(0, count - batch + 1, batch):
            b_p, b_h = (rows[start : start + batch] for rows in (rows_p, rows_h))
            optimizer.zero_grad()
            loss = ((x_p[b_p] @ weight.T @ omega - y_p[b_p]) ** 2).sum() / batch
            z_p = NaiveDummyLinear.apply(x_p[b_p], weight, ridge, False)
            z_h = NaiveDummyLinear.apply(x_h[b_h], weight, ridge, False)
            h_p, h_h = z_p.T @ z_p, z_h.T @ z_h
            top = torch.linalg.eigvalsh(h_p).max()
            low = torch.linalg.eigvalsh(h_h)
            low = low[low > 1e-6].min()
            d = theta.shape[0]
            well = top**2 / 2 - (h_p**2).sum() / (2 * d)
            ill = 1 / ((h_h**2).sum() / (2 * d) - low**2 / 2)
            (loss + lambda_p * well + lambda_h * ill).backward()
            optimizer.step()
            taken += 1
            if max_steps is not None and taken >= max_steps:
                return weight.detach().T
    return weight.detach().T


def exact_line_search(z: Tensor, y: Tensor, steps: int) -> list[Tensor]:
    """Gradient descent on ``‖Zw − Y‖²``, each step found by minimising along the gradient."""
    w = torch.zeros(z.shape[1], y.shape[1], dtype=z.dtype)
    path = [w]
    for _ in range(steps):
        residual = z @ w - y
        gradient = 2 * z.T @ residual
        moved = z @ gradient
        w = w - (residual * moved).sum() / (moved * moved).sum() * gradient
        path.append(w)
    return path


def random_orthogonal(size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    return q


def with_spectrum(values: list[float] | Tensor, seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    q = random_orthogonal(len(values), seed)
    matrix = q * values @ q.T
    return (matrix + matrix.T) / 2


def brute_force_ratio(k_p: Tensor, k_h: Tensor, trials: int, seed: int = 0) -> float:
    """Best ``κ_H(θ)/κ_P(θ)`` over random θ of many shapes: a lower bound on the ceiling."""
    generator = torch.Generator().manual_seed(seed)
    best = 0.0
    d = len(k_p)
    for trial, spread in zip(range(trials), itertools.cycle((0.1, 1.0, 3.0)), strict=False):
        theta = torch.randn(d, d, generator=generator, dtype=torch.float64)
        scale = torch.exp(spread * torch.randn(d, generator=generator, dtype=torch.float64))
        theta = theta * scale if trial % 2 else scale[:, None] * theta
        harmful, primary = (float(kappa(theta.T @ k @ theta)) for k in (k_h, k_p))
        if max(harmful, primary) < 1e10:  # beyond, rounding decides
            best = max(best, harmful / primary)
    return best


class PlainNet(nn.Module):
    """A small non-linear extractor for functions that take any module."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))
