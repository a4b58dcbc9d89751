"""Sums over the processes of a distributed run, with gradients.

A regularizer of a Gram matrix is not a mean over samples, so averaging its value over processes
would be wrong. Instead the Gram itself is summed, and every process computes the same value of
it. Data-parallel training then averages gradients over W processes. The backward pass multiplies
by W, so that the average is the gradient of one process that holds the joined batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from immunis.core.settings import differing

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")  # set by whatever starts processes


def world() -> int:
    """Return the number of processes in this run; 1 where none was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def first() -> bool:
    """Return True in the process that writes results, also before it joins the others."""
    if world() > 1:
        return rank() == 0
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def differing_across_processes(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the values that are not the same on every process."""
    if world() == 1:
        return []
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, dict(values))
    return sorted({name for one in found for name in differing(found[0], one)})


def summed(values: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradient."""
    if world() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def total_rows(rows: Tensor) -> int:
    """Return the number of rows that all processes hold together."""
    return len(rows) if world() == 1 else int(summed(torch.tensor(len(rows), device=rows.device)))


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return summed(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * world()


def summed_with_gradient(values: Tensor) -> Tensor:
    """Return the sum over all processes, each of which must compute the same function of it.

    Its gradient, averaged over the processes, is that of the joined batch.
    """
    return values if world() == 1 else _Summed.apply(values)


def joined(rows: Tensor) -> Tensor:
    """Return the rows (n, D) of all processes in order of rank, with the gradient of their sum."""
    if world() == 1:
        return rows
    counts = torch.zeros(world(), dtype=torch.int64, device=rows.device)
    counts[rank()] = len(rows)
    counts = summed(counts)
    before, after = int(counts[: rank()].sum()), int(counts[rank() + 1 :].sum())
    return summed_with_gradient(functional.pad(rows, (0, 0, before, after)))
