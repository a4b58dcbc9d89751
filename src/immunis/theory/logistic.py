"""Logistic regression by L-BFGS, on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TOLERANCE = 1e-4  # of the gradient, as scikit-learn has it
STILL = 1e-14  # of the loss, and of the weights
MEMORY = 50  # steps that L-BFGS remembers: it needs half as many as with ten


def logistic(
    z: Tensor, y: Tensor, classes: int, c: float, steps: int
) -> tuple[Tensor, Tensor, int]:
    """Minimise ``Σ −log softmax(Wz+b)_y + ‖W‖²/2c``; return W, b and the number of steps.

    L-BFGS on the features' device. Products are in the features' dtype, all else in float64: it
    would stop early where features are badly conditioned. Classes are numbered from
    0. For two classes only the difference of their weights counts, and it is penalised as
    scikit-learn does (``‖w₁ − w₀‖²/2c``).
    """
    n, d = z.shape
    if classes == 2:
        c = c / 2

    theta = torch.zeros(classes, d + 1, dtype=torch.float64, device=z.device)
    weights, bias = theta[:, :-1], theta[:, -1]
    rows = torch.arange(n, device=z.device)

    @torch.no_grad()
    def value() -> Tensor:
        answers = (z @ weights.T.to(z)).double() + bias
        wrong = answers.softmax(1)
        wrong[rows, y] -= 1
        slope = (wrong.T.to(z) @ z).double() / n + weights / (c * n)
        theta.grad = torch.cat([slope, wrong.mean(0)[:, None]], dim=1)
        return functional.cross_entropy(answers, y) + weights.square().sum() / (2 * c * n)

    descent = torch.optim.LBFGS(
        [theta],
        max_iter=steps,
        max_eval=50 * steps,
        tolerance_grad=TOLERANCE,
        tolerance_change=STILL,
        history_size=MEMORY,
        line_search_fn="strong_wolfe",
    )
    descent.step(value)
    return weights.cpu(), bias.cpu(), int(descent.state[theta]["n_iter"])
