"""A small network trained on a primary task: something to defend when none is at hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from immunis.errors import InputError
from immunis.tasks import Task


def pretrained_mlp(
    task: Task, widths: Sequence[int] = (128, 64), epochs: int = 60, seed: int = 0
) -> nn.Sequential:
    """Train ReLU layers, a linear feature layer and a head on a task, by Adam.

    The last width is the number of features. Float32, in evaluation mode, the same on every
    run with the same seed.
    """
    if task.kind != "classification" or len(task.input_shape) != 1 or not widths:
        raise InputError("a small network is pre-trained on classes of flat inputs, with a width.")
    inputs, labels = task.train.tensors()
    x, y = inputs.float(), task.positions(labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        width = task.input_shape[0]
        for index, size in enumerate(widths):
            layers += [nn.Linear(width, size)] + ([nn.ReLU()] if index < len(widths) - 1 else [])
            width = size
        network = nn.Sequential(*layers, nn.Linear(width, task.outputs))
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimizer.step()
    return network.requires_grad_(False).eval()
