"""Numbers at the ends of the range that is taken: each test is a fault that fuzzing once found."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.arenas import arena_for, separable
from immunis import (
    InputError,
    NumericalError,
    PreconditionedLinear,
    SettingsError,
    Spectrum,
    Task,
    audit,
    gram,
    immunize,
    reference_condition_number,
)
from immunis.attacks import ATTACKS
from immunis.attacks.search import curves, space_of
from immunis.audits.statistics.bootstrap import Design, interval, replicated
from immunis.audits.statistics.summary import share
from immunis.core.jobs import Run, sweep
from immunis.data.checks import in_dtype, power_of_two
from immunis.theory import probes
from immunis.theory import regularizers as r
from immunis.theory import steps as g
from immunis.theory.frontier import ceiling
from immunis.theory.gram import as_extractor, gram_of
from immunis.theory.spectrum import eigh, leading_projector, trailing_projector
from immunis.theory.steps import line_search, norm_ratio_curve

F = torch.float64
S = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=F))


@pytest.mark.parametrize("peak", [1e-320, 1e-300, 1.0, 1.5, 1e308])
def test_a_power_of_two_brings_numbers_to_unit_scale(peak):
    x = torch.tensor([[peak, -peak / 4]], dtype=F)
    power = power_of_two(x)
    assert 1 <= float((x / power).abs().max()) < 2
    assert torch.equal(x / power * power, x)
    assert power_of_two(0 * x) == 1
    with pytest.raises(NumericalError, match="NaN"):
        power_of_two(x * math.nan)


def test_an_answer_that_its_dtype_cannot_hold_is_refused():
    assert float(in_dtype(torch.tensor(2.0**-126, dtype=F), torch.float32, "x")) == 2.0**-126
    for value, dtype in ((2.0**-127, torch.float32), (2.0**128, torch.float32), (2.0**-1023, F)):
        with pytest.raises(NumericalError, match="too large" if value > 1 else "too small"):
            in_dtype(torch.tensor(value, dtype=F), dtype, "x")
    with pytest.raises(NumericalError, match="R_ill is too large for torch.float16"):
        r.r_ill(1e-3 * S.half())


@pytest.mark.parametrize("bad", [1e101, 1e-101, math.nan, math.inf])
def test_numbers_out_of_range_are_refused_once_at_the_door(bad):
    large = bad * S
    calls = [
        lambda: Spectrum.of(large), lambda: r.r_well(large), lambda: r.r_ill(large),
        lambda: r.kappa(large), lambda: r.linear_hessian(large, S), lambda: gram_of(large),
        lambda: probes.rho(large, S), lambda: probes.rho(S, large),
        lambda: r.feature_hessian(large), lambda: g.well_steps(large.diagonal(), 3),
        lambda: gram_of(S).transform(large), lambda: reference_condition_number(large),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((InputError, NumericalError), match="1e-(46|65|100)"):
            call()


def test_equal_numbers_scatter_by_exactly_nothing():
    x = torch.full((7, 2), 0.1, dtype=F)  # their mean rounds to another number
    moments = gram_of(x)
    moments.add(x)
    assert not moments.scatter.any()
    assert Spectrum.of(moments.scatter).rank == 0


def test_a_block_is_added_in_place():
    moments = gram_of(torch.randn(4, 3))
    held = moments.scatter.data_ptr()
    moments.add(torch.randn(5, 3))
    assert moments.scatter.data_ptr() == held
    with pytest.raises(InputError, match="2 features"):
        moments.add(torch.randn(5, 2))


@pytest.mark.parametrize("size", [2.0**-200, 2.0**200])
def test_kappa_and_its_gradient_hold_at_any_scale(size):
    assert float(r.kappa(size * S)) == 4
    torch.testing.assert_close(size * r.kappa_gradient(size * S), r.kappa_gradient(S))


def test_moments_that_a_map_sends_out_of_range_are_refused():
    for size in (1e60, 1e-60):
        with pytest.raises(NumericalError, match="moments of the mapped features"):
            gram_of(torch.randn(5, 2) + 3).transform(size * torch.eye(2, dtype=F))


def test_integers_get_a_fractional_answer():
    assert float(r.r_well(torch.tensor([[2, 0], [0, 1]]))) == 0.75


def test_a_product_that_is_zero_is_no_fault():
    assert not r.linear_hessian(torch.eye(2, dtype=F), torch.zeros(2, 2, dtype=F)).any()
    with pytest.raises(NumericalError, match="a product is too large for torch.float32"):
        r.linear_hessian(1e20 * torch.eye(2), torch.eye(2))


def test_rho_and_its_gradient_know_no_unit():
    torch.manual_seed(0)
    x, y = torch.randn(20, 3, dtype=F), torch.randn(20, 2, dtype=F)

    def both(size):
        leaf = (size * x).requires_grad_()
        value = probes.rho(leaf, y / size)
        value.backward()
        return float(value.detach()), size * leaf.grad

    plain = both(1.0)
    for size in (2.0**-90, 2.0**90):
        value, gradient = both(size)
        assert value == plain[0]
        torch.testing.assert_close(gradient, plain[1], rtol=0, atol=1e-15)


def test_certified_steps_scale_with_the_spectrum():
    sigma = torch.tensor([3.0, 2.0, 1.0], dtype=F)
    for size in (2.0**-60, 2.0**60):
        assert g.certified_well_step(size * sigma, 3) * size == g.certified_well_step(sigma, 3)
        assert g.certified_ill_step(size * sigma) / size**3 == g.certified_ill_step(sigma)


def test_the_ceiling_does_not_know_either_tasks_unit():
    torch.manual_seed(0)
    p, h = (torch.randn(20, 3, dtype=F) * torch.tensor([1.0, 2, 3]) for _ in range(2))
    plain = ceiling(gram_of(p), gram_of(h))
    for a, b in ((1e30, 1e-30), (1e-30, 1e30), (1e31, 1e31)):
        assert ceiling(gram_of(a * p), gram_of(b * h)) == pytest.approx(plain, rel=1e-9)


def test_a_norm_ratio_knows_no_unit():
    torch.manual_seed(0)
    x, y = torch.randn(20, 3, dtype=F), torch.randn(20, 1, dtype=F)
    plain = norm_ratio_curve(gram_of(x, y), 5)
    torch.testing.assert_close(norm_ratio_curve(gram_of(1e30 * x, 1e-30 * y), 5), plain)


def test_descent_stays_at_the_optimum_when_only_rounding_is_left():
    x = torch.tensor([[1e6, 1e6 + 1], [1e6 - 2, 1e6]], dtype=F)
    h, b = x.T @ x, x.T @ torch.tensor([[0.3], [-0.7]], dtype=F)
    flat = torch.ones(2, 2, dtype=F) * h[0, 0]
    path = line_search(flat, torch.full((2, 1), float(b[0]), dtype=F))
    steps = [next(path) for _ in range(50)]
    torch.testing.assert_close(steps[-1], steps[1], rtol=1e-9, atol=0)


@pytest.mark.parametrize(("size", "ridge"), [(1e-30, 1.0), (1e30, 1e-6), (1e-30, 0.0)])
def test_the_preconditioned_gradient_holds_at_any_scale(size, ridge):
    layer = PreconditionedLinear(1, 1, bias=False, ridge=ridge, dtype=F)
    layer(torch.tensor([[3 * size]], dtype=F)).sum().backward()
    expected = 3 * size / ridge if ridge == 1 else 1 / (3 * size)
    assert float(layer.weight.grad) == pytest.approx(expected)


def test_a_preconditioned_gradient_of_nan_is_refused():
    layer = PreconditionedLinear(1, 1, dtype=F)
    with pytest.raises(NumericalError, match="NaN"):
        layer(torch.tensor([[math.nan]], dtype=F)).sum().backward()


def test_a_layer_whose_dtype_cannot_hold_theta_is_refused():
    torch.manual_seed(0)
    p, h = (Task((1e-8 * torch.randn(30, 3, dtype=F), torch.arange(30) % 2)) for _ in range(2))
    with pytest.raises(NumericalError, match="too large for torch.float16"):
        immunize(torch.eye(3, dtype=torch.float16), p, h, "frontier")


def test_a_head_that_the_layers_dtype_cannot_hold_is_refused():
    torch.manual_seed(0)
    p, h = (Task((1e-6 * torch.randn(30, 3, dtype=F), torch.arange(30) % 2)) for _ in range(2))
    with pytest.raises(NumericalError, match="compensated head is too large for torch.float16"):
        immunize(torch.eye(3, dtype=torch.float16), p, h, "erase")


def test_the_leading_projector_refuses_zero():
    with pytest.raises(InputError, match="zero"):
        leading_projector(torch.zeros(2, 2))


def test_intervals_of_diverged_scores_do_not_overflow():
    hits = {"far": np.full((3, 10), 1e299), "near": np.full((3, 10), 0.01)}
    design = Design({"far": [0], "near": [0]}, 3)
    found = replicated(hits, design, str, replicates=50)
    assert interval(found["far"])["mean"] == pytest.approx(-1e300)
    told = share(found["far"], found["near"], found["near"])[1]
    assert told["mean"] is None and told["reason"]


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("name", ["knn", "kernel", "ridge"])
def test_closed_form_attacks_read_features_of_any_unit(name, size):
    def data(seed):
        x, y = separable(60, seed)
        return (x * np.float32(size)).astype(np.float32), y

    model = nn.Sequential(nn.Identity(), nn.Linear(6, 3)).eval()
    arena = arena_for(ATTACKS[name], data=data, model=model)
    first = {key: options[0] for key, options in space_of(ATTACKS[name], arena).items()}
    assert curves(ATTACKS[name], arena, [first])[0][-1].test > 0.9


TAKES_A_MATRIX = {
    "Spectrum.of": lambda m: Spectrum.of(m).eigenvalues,
    "reference_condition_number": lambda m: torch.tensor(reference_condition_number(m)),
    "eigh": lambda m: eigh(m)[0],
    "projectors": lambda m: leading_projector(m)[1] + trailing_projector(m).bottom,
    "r_well": lambda m: r.r_well(m) + r.r_well_gradient(m).sum(),
    "r_ill": lambda m: r.r_ill(m) + r.r_ill_gradient(m).sum(),
    "kappa": lambda m: r.kappa(m) + r.kappa_gradient(m).sum(),
    "rho": lambda m: probes.rho(m, m),
    "hessians": lambda m: r.feature_hessian(m) + r.linear_hessian(m, m),
    "hessian_to_theta": lambda m: r.hessian_to_theta(m, m, m),
    "gram": lambda m: gram(m).matrix(),
    "gram_of": lambda m: gram_of(m, m).matrix(),
    "transform": lambda m: gram_of(S).transform(m).matrix(),
    "steps": lambda m: g.eigenvalues_after_well_step(m[0], 0.1, 3),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", TAKES_A_MATRIX)
def test_matrices_are_taken_as_arrays_or_refused_by_name(name):
    call, plain = TAKES_A_MATRIX[name], S + 1
    expected = call(plain)
    for same in (plain.numpy(), np.asfortranarray(plain.numpy()[::-1])[::-1], np.ma.array(plain)):
        assert torch.equal(call(same), expected)
    if name != "steps":  # a row of those is taken below; sparse ones have none
        assert torch.equal(call(plain.to_sparse()), expected)
    other = [
        plain.to(torch.float8_e4m3fn), plain.to("meta"), plain.to(torch.complex64),
        torch.quantize_per_tensor(plain.float(), 0.1, 0, torch.qint8),
        np.ma.masked_less(plain.numpy(), 2), plain.numpy().astype(str),
    ]  # fmt: skip
    for foreign in other:
        with pytest.raises(InputError):
            call(foreign)


def test_masked_values_are_refused_not_read():
    x = np.ma.masked_greater(np.arange(12.0).reshape(4, 3), 10)
    with pytest.raises(InputError, match=r"1 masked value\(s\) came; drop those rows"):
        gram(x)
    with pytest.raises(InputError, match="masked"):
        Task((x, np.arange(4) % 2))


@pytest.mark.parametrize("bad", [2.5, True, None, "2", 2**70, -1, math.nan])
def test_settings_that_count_are_whole_numbers(bad):
    torch.manual_seed(0)
    x = torch.randn(20, 3, dtype=F)
    task = Task((x, torch.arange(20) % 2))
    calls = {
        "seed": lambda: immunize(torch.eye(3), task, task, "frontier", seed=bad),
        "steps": lambda: norm_ratio_curve(gram(task), bad),
        "workers": lambda: sweep({}, Run(workers=bad)),
        "seeds": lambda: audit({}, task, task, effort={"seeds": bad}),
    }
    for name, call in calls.items():
        with pytest.raises(SettingsError, match=f"{name}="):
            call()
    assert len(norm_ratio_curve(gram(task), np.int64(2))) == 3


def test_an_extractor_is_a_plain_matrix():
    for theta in (torch.eye(3, device="meta"), torch.eye(3).to(torch.float8_e4m3fn)):
        with pytest.raises(InputError):
            as_extractor(theta)
        task = Task((torch.randn(20, 3), torch.arange(20) % 2))
        with pytest.raises(InputError):
            immunize(theta, task, task, "frontier")
