"""Logistic regression with a sweep over C: how CLIP and its successors are probed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.preprocess import in_basis, lengths

TOLERANCE = 1e-4  # of the gradient, as scikit-learn has it
STILL = 1e-14  # of the loss, and of the weights
MEMORY = 50  # steps that L-BFGS looks back on: half as many are needed as with ten


def logistic(z: Tensor, y: Tensor, c: float, steps: int) -> tuple[Tensor, Tensor, int]:
    """Weights, biases and number of steps that minimise ``Σ −log softmax(Wz+b)_y + ‖W‖²/2c``.

    L-BFGS, all of it on the features' device. Products are in the features' dtype and all else in
    float64, or it would stop early where features are badly conditioned. Classes are numbered from
    0 and all occur; of two, only the difference of their weights counts, and is penalised as
    scikit-learn does (``‖w₁ − w₀‖²/2c``).
    """
    (n, d), classes = z.shape, int(y.max()) + 1
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
        [theta], max_iter=steps, max_eval=50 * steps, tolerance_grad=TOLERANCE,
        tolerance_change=STILL, history_size=MEMORY, line_search_fn="strong_wolfe",
    )  # fmt: skip
    descent.step(value)
    return weights.cpu(), bias.cpu(), int(descent.state[theta]["n_iter"])


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Fit L2-penalised logistic regression on features of unit mean square."""
    if arena.kind != "classification":
        raise NotApplicableError("logistic regression needs classes")
    features, meter = in_basis(arena, settings["basis"])
    features = features.scaled()
    seen, labels = features.y.unique(return_inverse=True)
    if len(seen) < 2:
        raise NotApplicableError("the rows to fit on hold one class only")
    z, labels = features.z.to(arena.device), labels.to(arena.device)
    matrix = torch.zeros(features.outputs, features.dimension, dtype=torch.float64)
    bias = torch.full((features.outputs,), -1e300, dtype=torch.float64)  # classes never seen
    found = logistic(z, labels, settings["c"], min(arena.budget, 500))
    matrix[seen], bias[seen], steps = found
    per_step = 4.0 * features.samples * features.dimension * features.outputs
    meter.point(
        steps,
        steps * features.samples,
        steps * per_step,
        lambda: features.scores(lambda z: z.double() @ matrix.T + bias),
    )
    return meter.points


ATTACK = Attack(
    "logistic",
    "logistic regression, C sweep",
    run,
    lambda arena: {"c": (1.0, 0.01, 100.0, 1e4), "basis": lengths(arena)},
    closed_form=True,
)
