"""Sums over the processes of a distributed run, with gradients.

A regularizer of a Gram matrix is no mean over samples, so averaging the gradients of
per-process values would be wrong. The Gram itself is summed, every process computes the same
value of it, and each sends back the gradient of its own samples. Data-parallel training then
*averages* gradients over W processes, hence the factor W on the way back: the average is
the gradient of one process that held the joined batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def world() -> int:
    """Number of processes in this run; 1 where none was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def leave() -> None:
    """Leave the run, so that no process waits for one that has ended; safe to repeat."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def summed(values: Tensor) -> Tensor:
    """Sum of a tensor over all processes, without gradient."""
    if world() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return summed(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * world()


def summed_with_gradient(values: Tensor) -> Tensor:
    """Sum over all processes whose gradient, averaged over them, is that of the joined batch.

    Every process must compute the same function of the sum.
    """
    return values if world() == 1 else _Summed.apply(values)
