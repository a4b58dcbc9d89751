"""The closed forms: erase and frontier."""

import pytest
import torch

from immunis import InputError, Task, gram, immunize, relative_immunization_ratio
from immunis.methods.erase import eraser
from immunis.theory.frontier import ceiling, ceilings
from immunis.theory.gram import as_extractor
from immunis.theory.probes import rho_of_gram

F = torch.float64
EYE = torch.eye(5, dtype=F)


def test_frontier_reaches_the_ceiling_at_any_budget(pair):
    top = ceiling(gram(pair[0]), gram(pair[1]))
    for budget in (1.0, 10.0):
        result = immunize(EYE, *pair, "frontier", budget=budget)
        ratio = relative_immunization_ratio(result.model, *pair)
        assert ratio.value == pytest.approx(top, rel=1e-6)
        kappa_p = ratio.spectra["primary"][1].condition_number
        assert kappa_p == pytest.approx(budget, rel=1e-6)


def test_frontier_is_no_worse_than_the_identity_where_free_directions_are_coupled():
    """The shared ceiling is 0.99 here: the identity neither drops nor decouples them."""
    draw = torch.Generator().manual_seed(0)
    x, h = (torch.randn(300, 8, generator=draw, dtype=F) for _ in range(2))
    x[:, 6:], h = 0, h * torch.linspace(1, 4, 8, dtype=F)
    tasks = Task((x, x[:, :1])), Task((h, h[:, 2:3]))
    found = ceilings(gram(tasks[0]), gram(tasks[1]))
    assert found.shared < 1 and found.free_directions == 2
    result = immunize(torch.eye(8, dtype=F), *tasks, "frontier")
    assert result.record.figures["rir"]["value"] == pytest.approx(10, rel=1e-6)
    details = result.record.figures["details"]
    assert details["floor"] == pytest.approx(found.shared / 10)
    asked = immunize(torch.eye(8, dtype=F), *tasks, "frontier", floor=0.1)
    assert asked.record.figures["details"]["floor"] == 0.1  # RIR is above 1


def test_frontier_stays_as_close_to_the_given_theta_as_rotations_allow(pair):
    theta = torch.randn(5, 5, dtype=F)
    found = immunize(theta, *pair, "frontier").model.weight.T
    distance = float((found - theta).norm())
    for seed in range(20):
        q, _ = torch.linalg.qr(
            torch.randn(5, 5, dtype=F, generator=torch.Generator().manual_seed(seed))
        )
        assert distance <= float((found @ q - theta).norm()) + 1e-9


def test_erase_leaves_linear_probes_nothing(pair):
    result = immunize(EYE, *pair, "erase", strength=0.0)
    after = gram(pair[1], as_extractor(result.model))
    assert rho_of_gram(after, 0.0) < 1e-12
    assert rho_of_gram(gram(pair[1]), 0.0) > 0.1
    assert not result.exact


def test_erase_interpolates_from_nothing_to_everything(pair):
    assert torch.equal(immunize(EYE, *pair, "erase", strength=1.0).model.weight, EYE)
    half = immunize(EYE, *pair, "erase", strength=0.5).model.weight
    full = immunize(EYE, *pair, "erase", strength=0.0).model.weight
    torch.testing.assert_close(half, (EYE + full) / 2)


@pytest.mark.parametrize("labels", ["classes", "values"])
def test_erase_equals_the_concept_erasure_package(labels):
    concept_erasure = pytest.importorskip("concept_erasure")
    x = torch.randn(200, 6, dtype=F) @ torch.randn(6, 6, dtype=F)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    if labels == "values":
        y = x[:, :2] @ torch.randn(2, 2, dtype=F) + torch.randn(200, 2, dtype=F)
    task = Task((x, y))
    fitter = concept_erasure.LeaceFitter.fit(
        x, task.targets(y), shrinkage=False, constrain_cov_trace=False, svd_tol=1e-12
    )
    ours, rank = eraser(gram(task))
    assert rank == 2
    torch.testing.assert_close(ours, fitter.eraser.P, rtol=1e-8, atol=1e-8)


def test_erase_of_unrelated_labels_says_there_is_nothing_to_erase():
    x = torch.tensor([[1.0, 0], [-1, 0], [1, 0], [-1, 0]]) @ torch.randn(2, 2)
    task = Task((torch.cat([x, -x]), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])))
    with pytest.raises(InputError, match="nothing to erase"):
        eraser(gram(task))
