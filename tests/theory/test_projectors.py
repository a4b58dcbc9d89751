"""Both ends of a spectrum by matrix products, the accelerator's path, against ``eigh``."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from immunis.theory import regularizers as r
from immunis.theory.projectors import (
    SQUARINGS,
    TURNS,
    leading_projector,
    null_projector,
    trailing_projector,
)
from immunis.theory.spectrum import eigh, relative_cutoff


def matrix(values, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(values), len(values))
    basis = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))[0]
    return basis * torch.tensor(values, dtype=torch.float64) @ basis.T


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1.0, 1e150])
def test_both_ends_agree_with_eigh(scale):
    s = matrix(np.logspace(0, -6, 24)) * scale
    values, vectors = eigh(s)
    for (value, projector, *_), at in ((leading_projector(s), 0), (trailing_projector(s), -1)):
        assert float(value / values[at]) == pytest.approx(1, rel=1e-9)
        wanted = torch.outer(vectors[:, at], vectors[:, at])
        assert torch.allclose(projector, wanted, atol=1e-8)


def test_ties_are_averaged():
    s = torch.diag(torch.tensor([4.0, 4.0, 2.0, 1.0, 1.0]))
    assert leading_projector(s)[1].diagonal().tolist() == pytest.approx([0.5, 0.5, 0, 0, 0])
    assert trailing_projector(s)[1].diagonal().tolist() == pytest.approx([0, 0, 0, 0.5, 0.5])


@settings(max_examples=50, deadline=None)
@given(st.floats(0.9, 1 - 1e-12))
def test_the_bound_holds_whatever_the_gap(second):
    s = matrix([1.0, second, 0.5, 0.1])
    value, projector = leading_projector(s)
    residual = float((s @ projector - value * projector).norm())
    assert residual <= 4 / (math.e * 2 ** (TURNS * SQUARINGS)) + 1e-12


def test_what_rounding_decides_is_left_to_eigh():
    assert trailing_projector(torch.zeros(3, 3)) is None
    assert trailing_projector(matrix([1.0, 2e-15])) is None
    assert trailing_projector(matrix([1.0, 0.5, 3e-16, 1e-15])) is None
    assert float(trailing_projector(torch.ones(1, 1)).smallest) == 1.0


def dead_units():
    z = torch.randn(200, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:, [3, 17, 39]] = 0.0
    return z * torch.logspace(0, -3, 40, dtype=torch.float64)


def normalised():  # the plane that LayerNorm maps to, in float32 as a network gives it
    z = torch.randn(400, 48, generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.layer_norm(z, (48,)).double()


def low_rank():
    generator = torch.Generator().manual_seed(2)
    factors = (torch.randn(*shape, generator=generator) for shape in ((300, 9), (9, 30)))
    return torch.linalg.multi_dot([f.double() for f in factors])


@pytest.mark.parametrize(("features", "rank"), [(dead_units, 37), (normalised, 47), (low_rank, 9)])
def test_a_null_space_is_lifted_out_of_the_way(features, rank):
    z = features()
    s = z.T @ z / len(z)
    values, vectors = eigh(s)
    end = trailing_projector(s)
    assert end.rank == rank == int((values > relative_cutoff(len(s)) * values[0]).sum())
    assert float(end.smallest / values[rank - 1]) == pytest.approx(1, rel=1e-6)
    wanted = torch.outer(vectors[:, rank - 1], vectors[:, rank - 1])
    assert torch.allclose(end.bottom, wanted, atol=1e-5)
    for fast, slow in (
        (r._ill_of(s, *end), r._ill(s)),
        (r._kappa_of(*leading_projector(s), *end[:2]), r._kappa(s)),
    ):
        assert torch.allclose(fast[0], slow[0], rtol=1e-6)
        assert torch.allclose(fast[1], slow[1], atol=1e-4 * float(slow[1].abs().max()))


def test_ones_have_rank_one():
    end = trailing_projector(torch.ones(3, 3))
    assert end.rank == 1
    assert float(end.smallest) == pytest.approx(3)
    assert torch.allclose(end.bottom, torch.full((3, 3), 1 / 3, dtype=torch.float64))


def test_purification_projects_on_what_lies_below_a_cut_off():
    values = [1.0, 1e-2, 1e-4, 1e-9, 1e-12, 0.0]
    s = matrix(values)
    null = null_projector(s, torch.tensor(1e-6, dtype=torch.float64))
    vectors = eigh(s)[1][:, 3:]
    assert torch.allclose(null, vectors @ vectors.T, atol=1e-9)
    assert null_projector(s, torch.tensor(1e-9, dtype=torch.float64)) is None  # one lies on it
