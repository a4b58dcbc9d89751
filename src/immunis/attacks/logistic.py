"""Logistic regression with a sweep over C: how CLIP and its successors are probed."""

from __future__ import annotations

import warnings

import torch

from immunis.attacks.base import Arena, Attack, Meter, NotApplicableError, Point, Settings


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Fit scikit-learn's L2-penalised logistic regression on features of unit mean square."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    if arena.kind != "classification":
        raise NotApplicableError("logistic regression needs classes")
    features, meter = arena.features().scaled(), Meter(arena)
    if len(features.y.unique()) < 2:
        raise NotApplicableError("the rows to fit on hold one class only")
    model = LogisticRegression(C=settings["c"], max_iter=min(arena.budget, 500))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the budget is meant to bind
        model.fit(features.z.numpy(), features.y.numpy())
    matrix = torch.zeros(features.outputs, features.dimension, dtype=torch.float64)
    bias = torch.full((features.outputs,), -1e300, dtype=torch.float64)  # classes never seen
    coefficients, intercepts = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if len(model.classes_) == 2:
        coefficients = torch.cat([-coefficients, coefficients]) / 2
        intercepts = torch.cat([-intercepts, intercepts]) / 2
    seen = torch.from_numpy(model.classes_)
    matrix[seen], bias[seen] = coefficients.double(), intercepts.double()
    steps = int(model.n_iter_.max())
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
    "scikit-learn's logistic regression, C sweep",
    run,
    lambda arena: {"c": (1.0, 0.01, 100.0)},
    closed_form=True,
)
