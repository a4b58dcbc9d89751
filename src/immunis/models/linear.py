"""Linear parts of a model: check an extractor θ, fit the primary head, make it compensate θ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.data.checks import as_tensor, in_dtype, square
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.theory.gram import Gram
from immunis.theory.logistic import logistic
from immunis.theory.probes import ridge_weights
from immunis.theory.spectrum import COARSEST, relative_cutoff

ROWS, STEPS = 256, 200  # read at a time; of L-BFGS
DECAY = 0.1


def invertible(matrix: Tensor, dtype: torch.dtype = torch.float64) -> bool:
    """Return True if no singular value of a square matrix is zero to the rounding of a dtype."""
    sigma = torch.linalg.svdvals(matrix)
    share = min(len(matrix) * torch.finfo(dtype).eps, COARSEST)
    return float(sigma[-1]) > float(sigma[0]) * share


def linear_layer(weights: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return ``x ↦ xᵀW + b`` as a frozen layer in float64."""
    layer = nn.Linear(len(weights), weights.shape[1], bias is not None, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weights.T)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.requires_grad_(False).eval()


def theta_and_bias(model: Any, primary: Task) -> tuple[Tensor, Tensor | None]:
    """Return θ (D×D) and the bias of a linear extractor in float64; refuse what is not one."""
    if not isinstance(model, nn.Linear | Tensor):
        kind = type(model).__name__
        raise InputError(f"expected nn.Linear, a matrix θ or a network, got {kind}.")
    weight, bias = (model.weight.T, model.bias) if isinstance(model, nn.Linear) else (model, None)
    theta = as_tensor(weight.detach(), "θ")
    if not theta.is_floating_point() or not bool(torch.isfinite(theta).all()):
        raise InputError(f"θ (dtype {theta.dtype}) must hold finite floating-point numbers.")
    theta = square(theta).to("cpu", torch.float64)
    if primary.input_shape != (len(theta),):
        raise InputError(
            f"θ reads {len(theta)} features, but {primary.name} inputs have shape "
            f"{primary.input_shape} per sample. Flatten the inputs, or pass a θ that fits."
        )
    if not invertible(theta):
        kappa = float(torch.linalg.cond(theta))
        raise InputError(f"θ is singular (κ = {kappa:.3g}); expected an invertible one.")
    return theta, None if bias is None else bias.detach().to("cpu", torch.float64)


def in_dtype_of(like: Tensor, layer: nn.Linear, what: str) -> nn.Linear:
    """Return a layer in a tensor's dtype, on its device; refuse numbers out of its range."""
    for part in (layer.weight, nn.utils.parameters_to_vector(layer.parameters())):
        in_dtype(part, like.dtype, what)
    return layer.to(like.device, like.dtype)


def least_squares_head(features: Gram) -> nn.Linear:
    """Return the primary head that minimises squared error on the original features."""
    weights = _least_squares(features, features.cross_scatter)
    return linear_layer(weights, features.target_mean - features.mean @ weights)


def fit_logistic_head(whole: Cut, task: Task) -> None:
    """Fit a model's head to a task's classes on its features as they are: logistic regression.

    The penalty is ``DECAY/n·‖W‖²/2`` on features of mean length one.
    """
    head = whole.head_layer
    if head is None or task.kind != "classification":
        raise InputError(f"{task.name}: a head is fitted to classes, on a model that has one.")
    with torch.no_grad():
        parts = [(whole.features(x).float().cpu(), y) for x, y in task.train.batches(ROWS)]
    z, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    size = z.norm(dim=1).mean().clamp(min=torch.finfo(z.dtype).tiny)
    weights, bias, _ = logistic(z / size, task.positions(labels), task.outputs, 1 / DECAY, STEPS)
    with torch.no_grad():
        head.weight.copy_(weights / size)
        if head.bias is not None:
            head.bias.copy_(bias)


def checked_head(head: nn.Linear, theta: Tensor, primary: Task) -> nn.Linear:
    """Return a head in float64; refuse one that does not fit the extractor or the task."""
    wanted = (primary.outputs, len(theta))
    if not isinstance(head, nn.Linear) or tuple(head.weight.shape) != wanted:
        raise InputError(
            f"head must be an nn.Linear that reads {wanted[1]} features and gives {wanted[0]} "
            f"outputs, as {primary.name} has; got {head}."
        )
    weights = head.weight.detach().to("cpu", torch.float64).T
    bias = weights.new_zeros(wanted[0]) if head.bias is None else head.bias.detach()
    if not bool(torch.isfinite(weights).all() and torch.isfinite(bias).all()):
        raise InputError("head holds NaN or infinite weights.")
    return linear_layer(weights, bias.to("cpu", torch.float64))


def _least_squares(features: Gram, cross: Tensor) -> Tensor:
    share = relative_cutoff(features.dimension, features.epsilon)
    return ridge_weights(features.scatter, cross, 0.0, share)


def compensated_head(
    head: nn.Linear, change: Tensor, features: Gram, dtype: torch.dtype = torch.float64
) -> tuple[nn.Linear, bool]:
    """Return the head on ``zT`` that predicts what ``head`` predicts on z, and if it is exact.

    It is exact for an invertible T, and the least-squares fit for a singular one. T was rounded to
    ``dtype``; a singular T that rounding made invertible is still taken as singular.
    """
    weights, bias = head.weight.T, head.bias
    if invertible(change, dtype):
        return linear_layer(torch.linalg.solve(change, weights), bias), True
    new = features.transform(change)
    fitted = _least_squares(new, change.T @ features.scatter @ weights)
    shift = features.mean @ weights - new.mean @ fitted
    return linear_layer(fitted, bias + shift), False
