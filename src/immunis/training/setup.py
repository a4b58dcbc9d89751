"""A model made ready for training: parameters chosen, mode set, optimizer built."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from immunis.core.errors import InputError
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.training.settings import Training

BATCHNORM = nn.modules.batchnorm._BatchNorm


def check_head(cut: Cut, primary: Task) -> None:
    """Refuse a head that does not answer the primary task, whose training would ruin it."""
    layer = cut.head_layer
    if layer is not None and layer.out_features != primary.outputs:
        hint = (
            f" If its labels are some of the head's, say Task(..., classes={layer.out_features})."
            if layer.out_features > primary.outputs
            else ""
        )
        raise InputError(
            f"head {cut.head!r} has {layer.out_features} outputs, {primary.name} has "
            f"{primary.outputs}; they must agree.{hint}"
        )


def trainable(cut: Cut, training: Training) -> set[str]:
    """Freeze all parameters but the chosen ones and the head; return the chosen names."""
    names = set(cut.parameters_named(training.layers))
    of_head = set() if cut.head_layer is None else {id(p) for p in cut.head_layer.parameters()}
    for name, parameter in cut.model.named_parameters():
        parameter.requires_grad_(name in names or id(parameter) in of_head)
    return names


def set_mode(model: nn.Module, training: Training, pretraining: bool) -> None:
    """Evaluation mode (no dropout) when immunizing; BatchNorm by choice where it is trained."""
    model.train(pretraining)
    for module in model.modules():
        if isinstance(module, BATCHNORM):
            module.train(training.batchnorm == "update" and _trains(module))


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def plain(name: str) -> str:
    """A parameter's name in the plain model, from that in one with taps, wrapped by Fabric."""
    return name.replace("_forward_module.", "").removeprefix("module.").removeprefix("model.")


def groups_of(training: Training, model: nn.Module, body: set[str]) -> list[dict[str, Any]]:
    """Trained parameters of the extractor, then of the head, with their rate and decay.

    ``body`` are the extractor's names in the plain model.
    """
    named = {plain(n): p for n, p in model.named_parameters() if p.requires_grad}
    return [
        {
            "params": [p for n, p in named.items() if n in body],
            "lr": training.rate,
            "weight_decay": training.weight_decay,
        },
        {
            "params": [p for n, p in named.items() if n not in body],
            "lr": training.rate if training.head_rate is None else training.head_rate,
            "weight_decay": training.head_weight_decay,
        },
    ]


def optimizer_of(training: Training, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum 0.9, or AdamW."""
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=training.rate, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=training.rate)
