"""How far an accuracy may be from the truth, by the rows that it was measured on.

A bootstrap of rows that all agree has no width, however few they are. These intervals invert the
score test, so they keep one: n rows without an error still allow an error rate of z²/(n + z²).

The difference of two models is that of Tango (1998, Statistics in Medicine 17:891). It depends on
the rows that one of them alone answers right. Where none is, the others fail or do not help:
Wald's interval has no width, Newcombe's has hardly any (it takes the two accuracies for one
number), and a Clopper-Pearson interval of the rows that differ says which model is better, not by
how much. On the side of losses Tango's is as long as the exact interval of a Poisson count, to
within 4%, and never shorter.
"""

from __future__ import annotations

import math

import numpy as np

Z = 1.959964  # 97.5% quantile of a normal distribution
NEAR = 1e-9  # the estimate itself solves the equation where no row differs


def score_interval(mine: np.ndarray, other: np.ndarray | None = None) -> tuple[float, float]:
    """Return the 95% interval of an accuracy, or of what it is above another one's.

    ``mine`` and ``other`` say how each row (n) was answered: right or wrong, or the share of
    several runs that were right. Runs that err on different rows say more than one of them does;
    the number of rows is divided by the design effect, the variance of the shares over that of
    runs that err together. It starts at 1, as if z² rows of full weight were there already.

    >>> right = np.ones(20)
    >>> low, high = score_interval(right, right)  # of two models without an error
    >>> round(low, 3), round(high, 3)
    (-0.161, 0.161)
    """
    if other is None:
        share = float(np.mean(mine))
        together, apart = len(mine) * share * (1 - share), float(np.square(mine - share).sum())
        return _wilson(share, len(mine) * (together + Z**2) / (apart + Z**2))
    change = np.subtract(mine, other, dtype=np.float64)
    more = (float(np.abs(change).sum()) + Z**2) / (float(np.square(change).sum()) + Z**2)
    gains, losses = more * change.clip(min=0).sum(), -more * change.clip(max=0).sum()
    rows = more * len(change)
    return _lower(gains, losses, rows), -_lower(losses, gains, rows)


def finest(rows: int) -> float:
    """Return the smallest loss of accuracy that so many rows can exclude, none of them lost.

    >>> finest(764) > 0.005 >= finest(765)
    True
    """
    return Z**2 / (rows + Z**2)


def _wilson(share: float, rows: float) -> tuple[float, float]:
    """Return Wilson's interval of a proportion (1927): all π with ``|p − π| ≤ z·√(π(1−π)/n)``."""
    extra = Z**2 / rows
    middle = share + extra / 2
    reach = Z * math.sqrt(share * (1 - share) / rows + extra / rows / 4)
    low, high = ((middle + side) / (1 + extra) for side in (-reach, reach))
    return max(0.0, low), min(1.0, high)


def _lower(gains: float, losses: float, rows: float) -> float:
    """Return Tango's lower end: the δ below the estimate that lies z standard errors from it.

    The standard error is ``√((2q + δ(1−δ))/n)``, where q is the rate of losses that is most likely
    if δ is true.
    """
    from scipy.optimize import brentq

    estimate = (gains - losses) / rows

    def excess(delta: float) -> float:
        b = (2 * rows - gains + losses) * delta - gains - losses
        root = math.sqrt(max(0.0, b**2 + 8 * rows * losses * delta * (1 - delta)))
        variance = 2 * (root - b) / (4 * rows) + delta * (1 - delta)
        return estimate - delta - Z * math.sqrt(max(0.0, variance) / rows)

    return -1.0 if estimate <= NEAR - 1 else float(brentq(excess, -1.0, estimate - NEAR))
