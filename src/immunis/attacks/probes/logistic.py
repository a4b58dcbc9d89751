"""Logistic regression with a sweep over C: how CLIP and its successors are probed."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from immunis.attacks.contract import (
    Arena,
    Attack,
    Curve,
    NotApplicableError,
    Searched,
    Settings,
    Step,
)
from immunis.attacks.features import lengths

TOLERANCE = 1e-4  # of the gradient, as scikit-learn has it
STILL = 1e-14  # of the loss, and of the weights
MEMORY = 50  # steps that L-BFGS remembers: it needs half as many as with ten


def logistic(z: Tensor, y: Tensor, c: float, steps: int) -> tuple[Tensor, Tensor, int]:
    """Minimise ``Σ −log softmax(Wz+b)_y + ‖W‖²/2c``; return W, b and the number of steps.

    L-BFGS on the features' device. Products are in the features' dtype, all else in float64: it
    would stop early where features are badly conditioned. Classes are numbered from 0 and all
    occur. For two classes only the difference of their weights counts, and it is penalised as
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


def run(arena: Arena, settings: Settings) -> Curve:
    """Fit L2-penalised logistic regression on features of unit mean square."""
    features = arena.features().in_basis(settings["basis"]).scaled()
    seen, labels = features.y.unique(return_inverse=True)
    if len(seen) < 2:
        raise NotApplicableError("the rows to fit on hold one class only")
    z, labels = features.z.to(arena.device), labels.to(arena.device)
    matrix = torch.zeros(features.outputs, features.dimension, dtype=torch.float64)
    bias = torch.full((features.outputs,), -1e300, dtype=torch.float64)  # classes never seen
    found = logistic(z, labels, settings["c"], min(arena.budget, 500))
    matrix[seen], bias[seen], steps = found
    samples = steps * features.samples
    flops = features.spent + 4.0 * samples * features.dimension * features.outputs
    scores = partial(features.scores, lambda z: z.double() @ matrix.T + bias)
    return [Step(steps, samples, flops, scores)]


SETTINGS: Searched = {"c": (1.0, 0.01, 100.0, 1e4), "basis": lengths}
ATTACK = Attack(run, SETTINGS, closed_form=True, needs_classes=True, place=7)
