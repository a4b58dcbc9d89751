"""How well predictions answer a task: accuracy, accuracy by class, R²."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from immunis.core.errors import NumericalError
from immunis.data.task import Task
from immunis.theory.scale import power_of_two


def score(predictions: Tensor, labels: Tensor, kind: str) -> float:
    """Return accuracy (the largest column wins), or ``R² = 1 − Σ‖ŷ−y‖²/Σ‖y−ȳ‖²``.

    ``predictions`` are (n, outputs), ``labels`` class positions (n) or targets (n, outputs).
    Predictions that are not finite score as the worst answer: accuracy 0, R² −∞. R² of constant
    targets is 1 where every prediction is exact, else −∞. So is an R² that float64 cannot hold.

    >>> score(torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([1, 1]), "classification")
    0.5
    """
    finite, labels = bool(torch.isfinite(predictions).all()), labels.to(predictions.device)
    if kind == "classification":
        return float((predictions.argmax(1) == labels).double().mean()) if finite else 0.0
    labels = labels.double().reshape(predictions.shape)
    errors = predictions.double() - labels
    if not bool(torch.isfinite(errors).all()):
        return -math.inf
    spread = labels - labels[0]
    if not bool(spread.any()):
        return -math.inf if bool(errors.any()) else 1.0
    size = power_of_two(spread)  # R² has no unit
    variance = (spread / size - (spread / size).mean(0)).square().sum()
    return float(1 - (errors / size).square().sum() / variance)


def class_scores(guesses: Tensor, labels: Tensor, classes: int) -> list[float]:
    """Return accuracy on each class to four decimals; NaN for a class without samples.

    >>> class_scores(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    [0.5, 1.0]
    """
    guesses, labels = guesses.cpu().reshape(-1), labels.cpu().reshape(-1)
    right = torch.bincount(labels[guesses == labels], minlength=classes).double()
    return [round(v, 4) for v in (right / torch.bincount(labels, minlength=classes)).tolist()]


def answers(predict: Callable[[Tensor], Tensor], task: Task) -> tuple[Tensor, Tensor]:
    """Return a model's predictions on a task's test data (else training data), and the labels."""
    encode = task.positions if task.kind == "classification" else task.targets
    batches = (task.test or task.train).batches()
    parts = [(predict(x).cpu(), encode(y).cpu()) for x, y in batches]
    predictions, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    if not bool(torch.isfinite(predictions).all()):
        raise NumericalError("the model predicts NaN or infinities: broken, or too narrow a dtype.")
    return predictions, labels
