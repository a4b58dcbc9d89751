"""How well predictions answer a task: row by row, as accuracy, accuracy by class, or R²."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from immunis.core.errors import NumericalError
from immunis.data.checks import power_of_two
from immunis.data.task import Task


def row_hits(predictions: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Return what each row adds to the score.

    For classes: True where the largest column is the label; their mean is accuracy. For targets:
    ``‖ŷ−y‖²/Σ‖y−ȳ‖²``, so that 1 minus their sum is R². ``predictions`` are (n, outputs),
    ``labels`` class positions (n) or targets (n, outputs). If any prediction is not finite, every
    row counts as the worst answer: False, or ∞. Of constant targets an exact row adds 0, any other
    one ∞.
    """
    finite, labels = bool(torch.isfinite(predictions).all()), labels.to(predictions.device)
    if kind == "classification":
        return (predictions.argmax(1) == labels) & finite
    labels = labels.double().reshape(predictions.shape)
    errors = (predictions.double() - labels).reshape(len(labels), -1)
    if not bool(torch.isfinite(errors).all()):
        return torch.full((len(labels),), torch.inf, dtype=torch.float64)
    spread = labels - labels[0]
    if not bool(spread.any()):
        return torch.where(errors.any(1), torch.inf, 0.0).double()
    size = power_of_two(spread)  # R² has no unit
    variance = (spread / size - (spread / size).mean(0)).square().sum()
    return (errors / size).square().sum(1) / variance


def score_of(hits: Tensor) -> float:
    """Return the score that ``row_hits`` add up to: accuracy of booleans, R² of floats."""
    return float(hits.double().mean()) if hits.dtype == torch.bool else float(1 - hits.sum())


def score(predictions: Tensor, labels: Tensor, kind: str) -> float:
    """Return accuracy (the largest column wins), or ``R² = 1 − Σ‖ŷ−y‖²/Σ‖y−ȳ‖²``.

    Predictions that are not finite score as the worst answer: accuracy 0, R² −∞. R² of constant
    targets is 1 where every prediction is exact, else −∞. So is an R² that float64 cannot hold.

    >>> score(torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([1, 1]), "classification")
    0.5
    """
    return score_of(row_hits(predictions, labels, kind))


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
        raise NumericalError(
            "the model predicts NaN or infinities. Check its weights, or use a wider dtype."
        )
    return predictions, labels
