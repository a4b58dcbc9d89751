"""Sum products ``zᵀz`` and ``zᵀy`` with an error that does not grow with the number of rows N.

In plain float64 the sum of N rows is off by up to ``N·u·|Z|ᵀ|Z|``, with ``u = 2⁻⁵³``. Collinear
columns of many rows then seem independent. Here each block of 2048 rows is cut in two,
``z = h + l``: h is z to 21 bits below the largest number of its column. ``hᵀh`` is exact, because
its terms are multiples of one unit and their sum stays below 2⁵³ units (Ozaki, Ogita, Oishi and
Rump 2012). What is left, ``hᵀl + lᵀh + lᵀl``, is 2⁻²¹ as large, and so is its rounding. The sum
over blocks is held in two numbers, ``high + low``.

Bound: ``|l| ≤ 2⁻²¹·‖zᵢ‖``, so a block of n rows adds an error of at most
``2·n·u·√n·2⁻²¹·‖zᵢ‖‖zⱼ‖ < u/8·‖zᵢ‖‖zⱼ‖``. By Cauchy and Schwarz the same holds of all blocks
together, for any N. Rounding to ``high`` alone adds u. So ``‖ΔK‖₂ ≤ 1.13·u·tr K < 0.6·ε·tr K``.
Of ``zᵀy`` both factors are cut, and the bound is the same with ``‖zᵢ‖‖yⱼ‖``.

This holds about the mean. ``Gram.add`` rounds the running mean μ once a block: an error e of it
puts ``n·(μeᵀ + eμᵀ)`` into ``Σzzᵀ``, so b blocks add up to ``2b·u·n·|μᵢμⱼ|``. To first order all
of that is along μ, so collinear columns keep their rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS, BITS = 2048, 21  # ROWS·(2^BITS)² ≤ 2⁵³
STRIP = 1 << 20  # numbers of the sum that are worked on at a time


def add_gram(high: Tensor, low: Tensor, z: Tensor) -> None:
    """Add ``zᵀz`` (z: n×D, float64) to the sum ``high + low`` (D×D each), in place.

    ``high`` is the sum rounded to float64 afterwards.
    """
    strips = torch.arange(len(high)).split(max(1, STRIP // len(high)))
    spans = [slice(int(strip[0]), int(strip[-1]) + 1) for strip in strips]
    for block in z.split(ROWS):
        head, tail = _cut(block)
        middle = head + tail / 2
        for rows in spans:
            _two_sum(high[rows], low[rows], head[:, rows].T @ head)
            rest = middle[:, rows].T @ tail
            low[rows] += rest
            low[:, rows] += rest.T
    for rows in spans:
        _round(high[rows], low[rows])


def add_products(high: Tensor, low: Tensor, z: Tensor, y: Tensor) -> None:
    """Add ``zᵀy`` (z: n×D, y: n×C, float64) to the sum ``high + low`` (D×C), as ``add_gram``."""
    for z_block, y_block in zip(z.split(ROWS), y.split(ROWS), strict=True):
        (z_head, z_tail), (y_head, y_tail) = _cut(z_block), _cut(y_block)
        _two_sum(high, low, z_head.T @ y_head)
        low += z_head.T @ y_tail + z_tail.T @ y_block
    _round(high, low)


def _cut(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the head h of a block, and what is left of it."""
    peak = block.abs().amax(0).clamp(min=1e-290)
    anchor = peak / torch.frexp(peak).mantissa * (1.5 * 2.0 ** (52 - BITS))
    head = (block + anchor) - anchor  # rounds to a multiple of the anchor's last bit
    return head, block - head


def _round(high: Tensor, low: Tensor) -> None:
    """Make ``high`` the sum rounded to float64."""
    rest = low.clone()
    low.zero_()
    _two_sum(high, low, rest)


def _two_sum(high: Tensor, low: Tensor, part: Tensor) -> None:
    """Add a part to ``high``, and what that rounds off to ``low``, exactly (Knuth 1969)."""
    total = high + part
    seen = total - high
    low += (high - (total - seen)) + (part - seen)
    high.copy_(total)
