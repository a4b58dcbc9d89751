"""The paper's baselines (IMMA, R_ill only, Opt κ) and the descent that they share."""

import pytest
import torch

from helpers.tasks import linear_problem
from immunis import RankWarning, immunize, relative_immunization_ratio
from immunis.methods.imma import Settings as ImmaSettings
from immunis.methods.imma import attacked, l2_loss

F = torch.float64
EYE = torch.eye(5, dtype=F)


def test_imma_differentiates_through_the_attacker(pair):
    _, h = linear_problem(*pair).moments
    settings = ImmaSettings(inner_steps=3, inner_step=1e-3)
    head = torch.randn(5, 3, dtype=F)
    theta = torch.randn(5, 5, dtype=F, requires_grad=True)

    def upper(t):
        return l2_loss(attacked(t, head, h, settings), head, h)

    assert torch.autograd.gradcheck(upper, (theta,))
    direct = l2_loss(theta, head, h)
    assert upper(theta) < direct  # the attacker descends


def test_l2_loss_from_moments_equals_the_mean_squared_error(pair):
    p = linear_problem(*pair)
    x, y = pair[1].train.tensors()
    theta, head = torch.randn(5, 5, dtype=F), torch.randn(5, 3, dtype=F)
    errors = (x.to(F) / p.scale @ theta @ head - pair[1].targets(y)).square().sum(1).mean()
    constant = pair[1].targets(y).square().sum(1).mean()
    torch.testing.assert_close(l2_loss(theta, head, p.moments[1]) + constant, errors)


def test_r_ill_raises_the_harmful_condition_number(pair):
    ratio = relative_immunization_ratio(immunize(EYE, *pair, "r_ill").model, *pair)
    assert ratio.harmful > 1


def test_opt_kappa_lowers_its_objective(pair):
    result = immunize(EYE, *pair, "opt_kappa", step=0.01)
    figures = result.record.figures["spectra"]

    def objective(when):
        p, h = (figures[task][when]["condition_number"] for task in ("primary", "harmful"))
        return p - h

    assert objective("after") < objective("before")


def test_lost_directions_never_flatter(pair):
    p = linear_problem(*pair)
    squashed = torch.diag(torch.tensor([1.0, 1, 1, 1, 1e-12], dtype=F))
    assert p.rir(squashed) == 0
    with pytest.warns(RankWarning, match="not defined"):
        relative_immunization_ratio(torch.diag(torch.tensor([1.0, 1, 1, 1, 0])), *pair)
