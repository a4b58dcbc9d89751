"""Toy tasks."""

import numpy as np
import torch

from immunis import Task, gram
from immunis.data.checks import hash_rows
from immunis.methods import LinearProblem


def make_task(n=60, d=5, classes=3, seed=0, name="toy", shift=0.0, scales=None):
    """A classification task whose classes differ in mean, full rank, unequal scales."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = rng.normal(size=(classes, d))
    x = rng.normal(size=(n, d)) + centres[y] + shift
    x *= np.logspace(0, 1, d) if scales is None else scales
    cut = n * 3 // 4
    return Task((x[:cut], y[:cut]), (x[cut:], y[cut:]), name)


def row_hashes(split):
    """A hash of each input row of a split."""
    return list(hash_rows(split.tensors()[0]))


def linear_problem(primary, harmful, theta=None):
    """What a linear method is given: θ₀ (the identity by default) and both tasks."""
    theta = torch.eye(primary.input_shape[0], dtype=torch.float64) if theta is None else theta
    return LinearProblem(theta, gram(primary), gram(harmful), (primary, harmful))
