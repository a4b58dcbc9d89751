"""Toy tasks."""

import numpy as np

from immunis import Task


def make_task(n=60, d=5, classes=3, seed=0, name="toy", shift=0.0, scales=None):
    """A classification task whose classes differ in mean, full rank, unequal scales."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = rng.normal(size=(classes, d))
    x = rng.normal(size=(n, d)) + centres[y] + shift
    x *= np.logspace(0, 1, d) if scales is None else scales
    cut = n * 3 // 4
    return Task((x[:cut], y[:cut]), (x[cut:], y[cut:]), name)
