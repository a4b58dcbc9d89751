import pytest
import torch
from torch import nn

from helpers import reference
from helpers.tasks import make_task
from immunis import (
    InputError,
    RankWarning,
    SettingsError,
    Task,
    gram,
    measure,
    norm_ratio_curve,
    relative_immunization_ratio,
)
from immunis.theory.descent import line_search
from immunis.theory.gram import gram_of
from immunis.theory.measure import degenerate_columns
from immunis.theory.metrics import as_extractor, score
from immunis.theory.ridge import ridge_probe

F = torch.float64


def test_rir_equals_its_definition(pair):
    theta = torch.randn(5, 5, dtype=F)
    found = relative_immunization_ratio(theta, *pair)
    k_p, k_h = (gram(t).matrix() for t in pair)
    harmful = reference.kappa(theta.T @ k_h @ theta) / reference.kappa(k_h)
    primary = reference.kappa(theta.T @ k_p @ theta) / reference.kappa(k_p)
    assert found.harmful == pytest.approx(float(harmful), rel=1e-6)
    assert found.primary == pytest.approx(float(primary), rel=1e-6)
    assert found.value == pytest.approx(float(harmful / primary), rel=1e-6)


def test_rir_of_the_identity_and_of_the_reference_itself_is_one(pair):
    assert relative_immunization_ratio(torch.eye(5), *pair).value == pytest.approx(1)
    theta = torch.randn(5, 5, dtype=F)
    assert relative_immunization_ratio(theta, *pair, reference=theta).value == pytest.approx(1)


def test_rir_ignores_scale_and_rotation(pair):
    theta = torch.randn(5, 5, dtype=F)
    plain = relative_immunization_ratio(theta, *pair).value
    turned = 1e5 * theta @ reference.random_orthogonal(5)
    assert relative_immunization_ratio(turned, *pair).value == pytest.approx(plain, rel=1e-6)


def test_rir_takes_layers_and_networks(pair):
    layer = nn.Linear(5, 5, bias=False)
    a = relative_immunization_ratio(layer, *pair).value
    b = relative_immunization_ratio(layer.weight.T, *pair).value
    assert a == pytest.approx(b, rel=1e-6)
    net = reference.PlainNet(5, 3).eval()
    found = relative_immunization_ratio(net, *pair, reference=nn.Linear(5, 3))
    assert found.value > 0


def test_extractors_are_checked():
    with pytest.raises(InputError, match="training mode"):
        as_extractor(reference.PlainNet(5, 3))
    with pytest.raises(InputError, match="nn.Module"):
        as_extractor("model")
    x = torch.randn(3, 2)
    assert torch.equal(as_extractor(None)(x), x)


def test_line_search_equals_the_naive_one():
    z, y = torch.randn(40, 4, dtype=F), torch.randn(40, 2, dtype=F)
    path = line_search(z.T @ z, z.T @ y)
    for expected in reference.exact_line_search(z, y, 20):
        torch.testing.assert_close(next(path), expected)


def test_line_search_obeys_its_convergence_bound():
    """‖w_t−w*‖_H falls by ((κ−1)/(κ+1)) a step or faster (Luenberger)."""
    z, y = torch.randn(60, 4, dtype=F) * torch.tensor([1.0, 2, 4, 8]), torch.randn(60, 1, dtype=F)
    h, b = z.T @ z, z.T @ y
    best, kappa = torch.linalg.solve(h, b), float(torch.linalg.cond(h))
    path, gap = line_search(h, b), None
    for _ in range(50):
        error = next(path) - best
        energy = float((error * (h @ error)).sum())
        if gap is not None and gap > 1e-18:
            assert energy <= gap * ((kappa - 1) / (kappa + 1)) ** 2 * (1 + 1e-6) + 1e-18
        gap = energy


def test_line_search_stays_at_the_optimum_and_takes_a_start():
    h, b = torch.eye(2, dtype=F), torch.ones(2, 1, dtype=F)
    path = line_search(h, b, start=torch.ones(2, 1, dtype=F))
    assert torch.equal(next(path), next(path))
    zero = line_search(torch.zeros(2, 2, dtype=F), torch.zeros(2, 1, dtype=F))
    assert torch.equal(next(zero), next(zero))


def test_norm_ratio_starts_at_one_falls_and_is_slower_where_kappa_is_larger():
    easy, hard = (make_task(200, scales=torch.logspace(0, s, 5).numpy()) for s in (0, 2))
    a, b = (norm_ratio_curve(gram(task), 50) for task in (easy, hard))
    assert len(a) == 51
    assert float(a[0]) == float(b[0]) == 1
    assert float(a[-1]) < 1e-3 < float(b[-1])
    one_step = norm_ratio_curve(gram_of(reference.random_orthogonal(4), torch.randn(4, 1)), 1)
    assert float(one_step[1]) < 1e-20


def test_norm_ratio_ignores_directions_without_data(quiet_rank):
    x, y = torch.randn(30, 3, dtype=F), torch.randn(30, 1, dtype=F)
    padded = torch.cat([x, torch.zeros(30, 2, dtype=F)], 1)
    torch.testing.assert_close(
        norm_ratio_curve(gram_of(padded, y), 20), norm_ratio_curve(gram_of(x, y), 20)
    )
    with pytest.raises(InputError, match="orthogonal"):
        norm_ratio_curve(gram_of(x, 0 * y), 5)


def test_ridge_probe_equals_the_normal_equations():
    z, y = torch.randn(50, 4, dtype=F) + 2, torch.randn(50, 2, dtype=F)
    weights, bias = ridge_probe(gram_of(z, y), 1e-12)
    ones = torch.cat([z, torch.ones(50, 1, dtype=F)], 1)
    expected = torch.linalg.lstsq(ones, y).solution
    torch.testing.assert_close(weights, expected[:-1])
    torch.testing.assert_close(bias, expected[-1])
    with pytest.raises(InputError, match="positive"):
        ridge_probe(gram_of(z, y), 0)


def test_score_is_accuracy_or_r_squared():
    x = torch.randn(30, 2, dtype=F)
    classes = Task((x, (x[:, 0] > 0).long() * 4))
    assert score(lambda z: torch.stack([-z[:, 0], z[:, 0]], 1), classes) == 1
    assert score(lambda z: torch.stack([z[:, 0], -z[:, 0]], 1), classes) == 0
    values = Task((x, x[:, 0]))
    assert score(lambda z: z[:, :1], values) == pytest.approx(1)
    assert score(lambda z: 0 * z[:, :1] + float(x[:, 0].mean()), values) == pytest.approx(0)
    constant = Task((x, torch.ones(30)))
    with pytest.raises(InputError, match="constant"):
        score(lambda z: z[:, :1], constant)


def test_measure_reports_spectra_ceiling_and_rho(pair):
    m = measure(*pair)
    assert (m.primary.rank, m.harmful.dimension, m.free_directions) == (5, 5, 0)
    assert m.ceiling > 1
    assert 0 < m.rho < 1
    figures = m.record.figures
    assert figures["primary"]["condition_number"] == m.primary.condition_number
    assert m.record.data["primary"]["train"].endswith("-60")
    with_model = measure(*pair, model=nn.Linear(5, 5))
    assert with_model.primary.condition_number != m.primary.condition_number


def test_measure_names_the_columns_that_lower_the_rank(pair):
    x, y = pair[0].train.tensors()
    x = torch.cat([x, x[:, 2:3], 0 * x[:, :1], torch.ones_like(x[:, :1])], 1)
    task = Task((x, y), name="odd")
    says = r"odd: rank 6 of 8: 1 zero.*\(6\); 1 constant.*\(7\); 1 duplicate.*\(5\)"
    with pytest.warns(RankWarning, match=says):
        m = measure(task, Task((torch.randn(60, 8, dtype=F), y), name="ok"))
    assert m.free_directions == 2
    assert m.ceiling == float("inf")
    assert m.ridge_ceiling < float("inf")


def test_a_large_common_mean_makes_no_columns_constant_or_equal():
    x = torch.randn(200, 4, dtype=F) + 1e7
    assert not any(degenerate_columns(gram_of(x)).values())
    x[:, 1] = x[:, 0]
    x[:, 2] = 3.3
    assert degenerate_columns(gram_of(x)) == {"zero": [], "constant": [2], "duplicate": [1]}


def test_measure_of_constant_labels_has_no_rho(pair):
    task = Task((torch.randn(20, 5), torch.zeros(20, dtype=torch.long)), name="constant")
    assert measure(pair[0], task).rho is None


def test_measure_refuses_unlike_tasks(pair):
    with pytest.raises(InputError, match="one extractor must read both"):
        measure(pair[0], Task((torch.randn(20, 4), torch.arange(20) % 2), name="narrow"))
    with pytest.raises(InputError, match="wrap data as Task"):
        measure(torch.randn(5, 5), pair[1])
    for bad in (torch.eye(7), nn.Linear(4, 4)):
        with pytest.raises(InputError, match="extractor reads"):
            measure(*pair, model=bad)
        with pytest.raises(InputError, match="extractor reads"):
            relative_immunization_ratio(bad, *pair)
    with pytest.raises(SettingsError, match="steps=-1"):
        norm_ratio_curve(gram(pair[0]), -1)
