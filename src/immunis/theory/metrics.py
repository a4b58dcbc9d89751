"""The paper's metrics: relative immunization ratio and norm-ratio curve; and task scores."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, NumericalError, RankWarning
from immunis.core.settings import whole
from immunis.data.split import Split
from immunis.data.task import Task
from immunis.theory.descent import line_search
from immunis.theory.gram import Gram, gram
from immunis.theory.scale import answer, real, unit
from immunis.theory.spectrum import Spectrum, eigh

Extractor = Callable[[Tensor], Tensor]


def as_extractor(model: nn.Module | Tensor | None) -> Extractor:
    """Return the feature map of a model, of a matrix θ (``x ↦ xᵀθ``), or the identity.

    A linear layer is applied in float64; any other module in the dtype of its parameters,
    in evaluation mode and without gradients.
    """
    if model is None:
        return lambda inputs: inputs
    if isinstance(model, Tensor | nn.Linear):
        weight = real(model).detach().T if isinstance(model, Tensor) else model.weight.detach()
        offset = None if isinstance(model, Tensor) else model.bias
        weight = weight.to("cpu", torch.float64)
        bias = None if offset is None else offset.detach().to("cpu", torch.float64)

        def linear(inputs: Tensor) -> Tensor:
            if inputs.ndim != 2 or inputs.shape[1] != weight.shape[1]:
                raise InputError(
                    f"the extractor reads {weight.shape[1]} features, but the inputs have shape "
                    f"{tuple(inputs.shape[1:])} per sample."
                )
            return nn.functional.linear(inputs.to(torch.float64), weight, bias)

        return linear
    if isinstance(model, nn.Module):
        if model.training:
            raise InputError("the model is in training mode; call model.eval() first.")
        parameter = next(model.parameters(), torch.zeros(()))

        @torch.no_grad()
        def extract(inputs: Tensor) -> Tensor:
            return model(inputs.to(parameter.device, parameter.dtype))

        return extract
    raise InputError(f"expected a matrix θ or an nn.Module, got {type(model).__name__}.")


@dataclass(frozen=True)
class RelativeImmunizationRatio:
    """RIR and its two factors (paper, eqs. 9 and 11).

    Attributes:
        harmful: factor (i), ``κ(H_H(θ_I))/κ(H_H(reference))``; large is immunized.
        primary: factor (ii), ``κ(H_P(θ_I))/κ(H_P(reference))``; at most 1 is no harm done.
        spectra: the spectra behind them, by ``"primary"``/``"harmful"`` and before/after.
    """

    harmful: float
    primary: float
    spectra: dict[str, tuple[Spectrum, Spectrum]]

    @property
    def value(self) -> float:
        """The ratio (i)/(ii)."""
        return self.harmful / self.primary


def relative_immunization_ratio(
    model: nn.Module | Tensor,
    primary: Task,
    harmful: Task,
    reference: nn.Module | Tensor | None = None,
) -> RelativeImmunizationRatio:
    """RIR of an extractor against the identity, or against ``reference`` (RIR_θ₀).

    Args:
        model: the immunized extractor, an ``nn.Module`` or a matrix θ (``x ↦ xᵀθ``).
        primary: the task that must stay easy.
        harmful: the task that should be hard.
        reference: what to compare with; the inputs themselves if left out.
    """
    check_pair(primary, harmful)
    spectra = {
        name: (
            Spectrum.of(gram(task, as_extractor(reference))),
            Spectrum.of(gram(task, as_extractor(model))),
        )
        for name, task in (("primary", primary), ("harmful", harmful))
    }
    for name, (old, new) in spectra.items():
        if old.rank != new.rank:
            warnings.warn(
                f"the rank of the {name} features went from {old.rank} to {new.rank}: their "
                "condition numbers describe different subspaces, and RIR compares unlike things.",
                RankWarning,
                stacklevel=2,
            )
    before, after = zip(
        *(
            (pair[0].condition_number, pair[1].condition_number)
            for pair in (spectra["harmful"], spectra["primary"])
        ),
        strict=True,
    )
    return RelativeImmunizationRatio(after[0] / before[0], after[1] / before[1], spectra)


def check_pair(primary: Task, harmful: Task) -> None:
    """Refuse what one extractor cannot read together."""
    for task in (primary, harmful):
        if not isinstance(task, Task):
            raise InputError(
                f"expected a Task, got {type(task).__name__}; wrap data as Task(train=(X, y))."
            )
    if primary.input_shape != harmful.input_shape:
        raise InputError(
            f"{primary.name} inputs have shape {primary.input_shape} per sample, {harmful.name} "
            f"inputs {harmful.input_shape}; one extractor must read both."
        )


def norm_ratio_curve(moments: Gram, steps: int = 100) -> Tensor:
    """``‖w_t − w*‖²/‖w₀ − w*‖²`` of probing by exact line search, t = 0..steps (paper, eq. 10).

    Starts at w₀ = 0; w* is the least-squares solution of smallest norm, so directions that
    no data reaches do not count.

    Args:
        moments: of the probed features and their targets, from ``gram(task, extractor)``.
        steps: number of descent steps T; the curve has T + 1 values, the first is 1.
    """
    steps = whole(steps, "steps")
    if not moments.cross().shape[1]:
        raise InputError("the moments hold no targets; a norm ratio needs some: gram(task).")
    (hessian, _), (cross, _) = (
        unit(moments.matrix()),
        unit(moments.cross()),
    )  # the ratio has no unit
    values, vectors = eigh(hessian)
    spectrum = Spectrum.of(moments)
    kept, cross = values[: spectrum.rank], vectors[:, : spectrum.rank].T @ cross
    optimum, _ = unit(cross / kept[:, None])  # in coordinates of the directions that data reaches
    size = optimum.square().sum()
    if not float(size) > 0:
        raise InputError("the targets are orthogonal to every feature: probing starts at its end.")
    path = itertools.islice(line_search(torch.diag(kept), optimum * kept[:, None]), steps + 1)
    return torch.stack([(w - optimum).square().sum() / size for w in path])


def class_scores(guesses: Tensor, labels: Tensor, classes: int) -> list[float]:
    """Accuracy on each class, ``#{guess = label = c} / #{label = c}``, to four decimals.

    NaN for a class without samples.

    >>> class_scores(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    [0.5, 1.0]
    """
    guesses, labels = guesses.cpu().reshape(-1), labels.cpu().reshape(-1)
    right = torch.bincount(labels[guesses == labels], minlength=classes).double()
    return [round(v, 4) for v in (right / torch.bincount(labels, minlength=classes)).tolist()]


def score(predict: Callable[[Tensor], Tensor], task: Task, split: Split | None = None) -> float:
    """Accuracy of ``predict`` on a task, or R² for regression, on ``split`` (its test data).

    ``predict`` maps inputs to one column per class (the largest wins) or per target.
    """
    split = split or task.test or task.train
    if task.kind == "classification":
        right = count = 0
        for inputs, labels in split.batches():
            guess = finite_predictions(predict(inputs)).argmax(1).cpu()
            right += int((guess == task.positions(labels).cpu()).sum())
            count += len(labels)
        return right / count
    parts = [
        (finite_predictions(predict(inputs)).cpu().to(torch.float64), task.targets(labels))
        for inputs, labels in split.batches()
    ]
    found, wanted = (torch.cat(column) for column in zip(*parts, strict=True))
    spread, e = unit(wanted - wanted[0])  # squares fit at unit scale; R² has no unit
    spread = (spread - spread.mean(0)).square().sum()
    if not float(spread) > 0:
        raise InputError(f"{split.where}: the targets are constant, so R² is undefined.")
    errors, f = unit(found - wanted)
    return float(1 - answer(errors.square().sum() / spread, 2 * (f - e), torch.float64, "R²"))


def finite_predictions(outputs: Tensor) -> Tensor:
    """Refuse predictions that are NaN or infinite: their score would mean nothing."""
    if not bool(torch.isfinite(outputs).all()):
        raise NumericalError(
            "the model predicts NaN or infinite values; it is broken, or its dtype too narrow."
        )
    return outputs
