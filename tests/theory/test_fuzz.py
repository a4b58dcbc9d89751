"""Every public numerical function on bad numbers: the right answer, or one of our errors.

Tolerances are stated beside each comparison, in units of what rounding may do: ``EPS`` of float64
times the size of the numbers that are added. ``make fuzz`` runs the same for much longer.
"""

import importlib
import inspect
import itertools
import math
import re
import warnings

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from torch import nn

import immunis
from helpers import RESULTS, ROOT
from helpers.arenas import arena_for, separable
from helpers.fuzzing import EPS, Inputs, centred, close, eigenvalues, exact, inputs, rank_of
from helpers.reference import eigenvalues_after_ill_step
from immunis import (
    ImmunisError,
    LostPrimaryWarning,
    PreconditionedLinear,
    RankWarning,
    Record,
    ScaleWarning,
    Spectrum,
    Task,
    gram,
    immunize,
    measure,
    reference_condition_number,
    relative_immunization_ratio,
    standardised,
)
from immunis.attacks import ATTACKS
from immunis.attacks.features import whitening
from immunis.attacks.search import curves, space_of
from immunis.audits.statistics import claims, cost, summary
from immunis.audits.statistics.bootstrap import Design
from immunis.audits.statistics.predictors import predictors
from immunis.core.packing import packed
from immunis.data import checks as numbers
from immunis.methods.erase import eraser
from immunis.models.linear import checked_head, compensated_head, invertible, least_squares_head
from immunis.theory import frontier as f
from immunis.theory import probes, spectrum
from immunis.theory import regularizers as r
from immunis.theory import steps as g
from immunis.theory.gram import as_extractor, gram_of, gram_of_blocks, paired_grams
from immunis.theory.measure import degenerate_columns, spectrum_outline
from immunis.theory.probes import ridge_probe, ridges_of
from immunis.theory.rir import rir
from immunis.theory.score_interval import finest, score_interval
from immunis.theory.scores import answers, class_scores, score
from immunis.theory.spectrum import quiet_spectrum, relative_cutoff
from immunis.theory.steps import line_search, norm_ratio_curve

F = torch.float64
LONG = settings.default.max_examples > 100  # the profile "fuzz"
CHECKS = {}  # by public function


def checks(*names):
    """Say which public functions a check is of."""

    def register(check):
        for name in names:
            assert name not in CHECKS, name
            CHECKS[name] = check
        return check

    return register


def eps_of(dtype):
    return torch.finfo(dtype).eps if dtype.is_floating_point else EPS


def finite(values):
    values = torch.as_tensor(values, dtype=F)
    assert bool(torch.isfinite(values).all()), values
    return values


def sizes(x):
    """Σ|z||z|ᵀ: what rounding errors of the Gram are relative to."""
    magnitude = exact(x.to(F).abs())
    return magnitude.T * magnitude


# Moments


@checks("gram.gram", "gram.gram_of", "gram.gram_of_blocks", "gram.Gram.matrix")
def moments(i: Inputs):
    x = i.x
    found = gram_of(x)
    true, size = exact(x).T * exact(x), sizes(x)
    k = found.matrix()
    for a, b in itertools.product(range(i.d), repeat=2):
        both = mpmath.sqrt(size[a, a] * size[b, b])  # raw moments are rebuilt from centred ones
        assert close(float(k[a, b]), true[a, b], 20 * i.n * EPS * both)
    constant = (x.to(F) == x[0].to(F)).all(0)
    assert not bool(found.scatter[constant].any())  # exactly
    if i.n > 1:
        torch.testing.assert_close(gram(x).matrix(), k, rtol=0, atol=0)


@checks("gram.Gram.add", "gram.Gram.cross")
def added(i: Inputs):
    x, y = i.x, i.targets()
    whole, parts = gram_of(x, y), gram_of(x[:1], y[:1])
    if i.n > 1:
        parts.add(x[1:], y[1:])
    size = float(x.to(F).abs().max())
    assert parts.samples == i.n
    atol = 100 * i.n * EPS * size
    torch.testing.assert_close(parts.matrix(), whole.matrix(), rtol=0, atol=atol * size)
    torch.testing.assert_close(parts.cross(), whole.cross(), rtol=0, atol=atol * 4)


@checks("gram.Gram.transform", "gram.stretch", "gram.Linear.rounding")
def transformed(i: Inputs):
    x, t = i.x.to(F), i.features(5, i.other_scale)[:1].to(F).expand(i.d, -1)
    found = gram_of(x).transform(t)
    true = exact(t).T * exact(x).T * exact(x) * exact(t)
    size = exact(t.abs()).T * sizes(x) * exact(t.abs())
    for a in range(i.d):
        assert close(float(found.matrix()[a, a]), true[a, a], 100 * i.n * i.d * EPS * size[a, a])


@checks("gram.symmetric", "gram.as_extractor", "tasks.Task")
def tasks_and_extractors(i: Inputs):
    task = Task((i.x, i.labels()))
    features = as_extractor(i.square())(next(task.train.batches())[0])
    if bool(torch.isfinite(features).all()):
        gram_of(features)


# Spectra


@checks("spectrum.Spectrum.of", "spectrum.quiet_spectrum", "spectrum.relative_cutoff")
def spectra(i: Inputs):
    found = quiet_spectrum(gram_of(i.x))
    true = eigenvalues(exact(i.x).T * exact(i.x))
    size = true[0] * i.n * i.d * 20 * EPS  # rounding of the products and of the decomposition
    for value, exactly in zip(found.eigenvalues.tolist(), true, strict=True):
        assert close(value, exactly, size)
    share = relative_cutoff(i.d, eps_of(i.x.dtype))
    rank = rank_of(true, share) if true[0] else 0
    assert rank is None or found.rank == rank
    if not rank:
        return
    kappa = true[0] / true[rank - 1]
    least = min(kappa, mpmath.mpf(found.condition_number))
    assert math.isinf(found.relative_error) or close(
        found.condition_number, kappa, found.relative_error * least
    )
    assert close(found.condition_number, kappa, 20 * i.n * kappa * kappa * EPS)


@checks("spectrum.Spectrum.free_directions")
def bare_matrices(i: Inputs):
    s = i.square()
    found = Spectrum.of(s)
    true = eigenvalues(exact(s))
    rank = rank_of(true, relative_cutoff(i.d, EPS, s.dtype if s.is_floating_point() else F))
    if true[0] > 0 and rank is not None and all(v > -true[0] * EPS for v in true):
        assert found.rank == rank
        kappa = true[0] / true[rank - 1]
        assert close(found.condition_number, kappa, 100 * i.d * EPS * kappa * kappa)
    assert found.free_directions(found) == 0


@checks("spectrum.eigh", "spectrum.leading_projector", "spectrum.trailing_projector",
        "spectrum.null_projector", "spectrum.squared", "spectrum.trace")  # fmt: skip
def both_projectors(i: Inputs):
    s = i.square().to(F)
    values, vectors = spectrum.eigh(s)
    true = eigenvalues(exact(s))
    assert close(float(values[0]), true[0], 100 * i.d * EPS * abs(true[0]))
    finite(vectors)
    top, projector = spectrum.leading_projector(s)
    assert close(float(top), true[0], i.d * true[0] * 2.0**-19)  # its stated bound
    assert close(float(projector.diagonal().sum()), mpmath.mpf(1), 1e-12)
    cutoff = 1e-6 * s.diagonal().sum()
    null = spectrum.null_projector(s, cutoff)
    if null is not None:
        below = sum(value < float(cutoff) for value in true)
        assert float(null.diagonal().sum()) == pytest.approx(below, abs=1e-5)
    end = spectrum.trailing_projector(s)
    if end is not None:
        bound = relative_cutoff(i.d) * true[0] + 1e-2 * true[end.rank - 1]
        assert close(float(end.smallest), true[end.rank - 1], bound)


@checks("spectrum.reference_condition_number")
def released(i: Inputs):
    s = i.square()
    assert 1 <= reference_condition_number(s) < math.inf


# Long data: every row many times, up to a million rows. The tolerances know no number of rows.


@checks("summation.add_gram", "summation.add_products")
def long_sums(i: Inputs):
    batch = (64, 1000, 2**20)[i.place % 3] if i.long < 10**5 else 2**20
    y = i.targets()
    parts = (rows.repeat(i.times, 1).split(batch) for rows in (i.x, y))
    moments = gram_of_blocks(zip(*parts, strict=True))
    assert moments.samples == i.n * i.times
    k, true = moments.matrix(), exact(i.x).T * exact(i.x) * i.times
    for a, b in itertools.product(range(i.d), repeat=2):
        assert close(float(k[a, b]), true[a, b], 20 * EPS * mpmath.sqrt(true[a, a] * true[b, b]))
    cross, yy = exact(i.x).T * exact(y) * i.times, exact(y).T * exact(y) * i.times
    for a, c in itertools.product(range(i.d), (0, 1)):
        error = 20 * EPS * mpmath.sqrt(true[a, a] * yy[c, c])
        assert close(float(moments.cross()[a, c]), cross[a, c], error)
    found, values = quiet_spectrum(moments), eigenvalues(true)
    for value, exactly in zip(found.eigenvalues.tolist(), values, strict=True):
        assert close(value, exactly, 20 * i.d * EPS * values[0])
    rank = rank_of(values, relative_cutoff(i.d, eps_of(i.x.dtype))) if values[0] else 0
    assert rank is None or found.rank == rank
    if rank:
        kappa = values[0] / values[rank - 1]
        least = min(kappa, mpmath.mpf(found.condition_number))
        assert close(found.condition_number, kappa, found.relative_error * least)


@checks("long.relative_immunization_ratio", "long.rho")
def long_figures(i: Inputs):
    ratios_of(i, i.times)
    x, y = i.x, i.targets(scale=i.other_scale)
    long = gram_of(x.repeat(i.times, 1), y.repeat(i.times, 1))
    assert close(probes.rho_of_gram(long, i.ridge), *explained_share(i, x, y))


# Regularizers


def singular(s, rank=None):
    """Exact singular values of a symmetric matrix that count, or None where that is unclear."""
    true = sorted((abs(v) for v in eigenvalues(exact(s))), reverse=True)
    if not true[0]:
        return []
    dtype = s.dtype if s.is_floating_point() else F
    rank = rank_of(true, relative_cutoff(len(s), dtype=dtype))
    return None if rank is None else true[:rank]


@checks("regularizers.r_well", "regularizers.r_well_gradient", "regularizers.closed_form")
def well(i: Inputs):
    s = i.square()
    value, gradient = float(r.r_well(s)), r.r_well_gradient(s).to(F)
    true = [abs(v) for v in eigenvalues(exact(s))]
    top = max(true)
    wanted = top**2 / 2 - mpmath.fsum(v**2 for v in true) / (2 * i.d)
    precision = max(eps_of(s.dtype), EPS)
    assert close(value, wanted, 2 * precision * wanted + 20 * i.d * precision * top**2)
    euler = mpmath.fsum(a * b for a, b in zip(exact(gradient), exact(s), strict=True))
    assert abs(euler - 2 * wanted) <= 50 * i.d**2 * precision * top**2  # ⟨∇R, S⟩ = 2R
    if s.is_floating_point():  # the backward pass hands on the closed form as it is
        leaf = s.clone().requires_grad_()
        r.r_well(leaf).backward()
        assert torch.equal(leaf.grad.to(F), gradient)


@checks("regularizers.r_ill", "regularizers.r_ill_gradient", "regularizers.ill_gap")
def ill(i: Inputs):
    s = i.square()
    value, gradient = float(r.r_ill(s)), r.r_ill_gradient(s).to(F)
    assert value > 0
    kept = singular(s)
    if not kept:
        return
    gap = mpmath.fsum(v**2 for v in kept) / (2 * len(kept)) - kept[-1] ** 2 / 2
    precision = max(eps_of(s.dtype), EPS)
    error = 200 * i.d * precision * kept[0] ** 2
    if gap > 10 * error:
        assert close(value, 1 / gap, error / gap**2 * 2 + 2 * precision / gap)
        euler = mpmath.fsum(a * b for a, b in zip(exact(gradient), exact(s), strict=True))
        assert abs(euler * gap + 2) <= 20 * i.d * error / gap  # ⟨∇R, S⟩ = −2R
    elif math.isinf(value):
        assert not bool(gradient.any())


@checks("regularizers.kappa", "regularizers.kappa_gradient", "regularizers.tied")
def condition(i: Inputs):
    s = i.square()
    value, gradient = float(r.kappa(s)), finite(r.kappa_gradient(s))
    kept = singular(s)
    if not kept:
        return
    wanted, precision = kept[0] / kept[-1], max(eps_of(s.dtype), EPS)
    assert close(value, wanted, 100 * i.d * EPS * wanted**2 + 2 * precision * wanted)
    euler = mpmath.fsum(a * b for a, b in zip(exact(gradient), exact(s), strict=True))
    assert abs(euler) <= 100 * i.d**2 * precision * wanted**2  # κ does not know the scale


@checks(
    "regularizers.linear_hessian", "regularizers.feature_hessian", "regularizers.hessian_to_theta"
)
def products(i: Inputs):
    x = i.x
    hessian, true, size = r.feature_hessian(x), exact(x).T * exact(x), sizes(x)
    for a, b in itertools.product(range(i.d), repeat=2):
        assert close(float(hessian[a, b]), true[a, b], 20 * i.n * EPS * size[a, b])
    theta = i.features(5, i.other_scale)[:1].to(F).T.expand(i.d, i.d)
    for found, factors in (
        (r.linear_hessian(theta, hessian), (theta.T, hessian, theta)),
        (r.hessian_to_theta(theta, hessian, hessian), (2 * hessian, theta, hessian)),
    ):
        a, b, c = map(exact, factors)
        p, q, s = (exact(f.abs()) for f in factors)
        wanted, size = (a * b * c)[0, 0], (p * q * s)[0, 0]
        assert close(float(found[0, 0]), wanted, 100 * i.d * EPS * size)


@checks("probes.rho", "probes.rho_of_gram")
def explained(i: Inputs):
    x, y = i.x, i.targets(scale=i.other_scale)
    leaf = x.clone().requires_grad_(x.is_floating_point())
    value = probes.rho(leaf, y, i.ridge)
    if x.is_floating_point():
        value.backward()
        finite(leaf.grad)
    value = float(value.detach())
    precision = max(eps_of(x.dtype), EPS)
    true, tolerance = explained_share(i, x, y)
    assert close(value, true, tolerance + 2 * precision)
    assert -1e-12 <= value <= 1 + 1e-9 + precision
    assert close(probes.rho_of_gram(gram_of(x, y), i.ridge), true, tolerance)


def explained_share(i: Inputs, x, y):
    """ρ at 50 digits, and what rounding may do to it."""
    z, t = centred(exact(x)), centred(exact(y))
    zz, zy = z.T * z, z.T * t
    trace, total = sum(zz[a, a] for a in range(i.d)), mpmath.fsum(v**2 for v in t)
    true = mpmath.mpf(0)
    # centring rounds by EPS of the largest feature, which a large mean makes a large share
    peak = max(abs(v) for v in exact(x))
    noise = 20 * EPS * peak / mpmath.sqrt(trace / i.n) if trace else mpmath.mpf(0)
    if trace:
        weights = mpmath.lu_solve(zz / trace + mpmath.eye(i.d) * (i.ridge / i.d), zy[:, 0])
        rest = mpmath.lu_solve(zz / trace + mpmath.eye(i.d) * (i.ridge / i.d), zy[:, 1])
        true = (mpmath.fdot(weights, zy[:, 0]) + mpmath.fdot(rest, zy[:, 1])) / trace / total
    return true, 50 * i.n * i.d * (EPS + noise) * (1 + i.d / i.ridge)


# Guarantees


def moved(sigma, step, slope):
    return [s * (1 - 2 * step * a * s) ** 2 for s, a in zip(sigma, slope, strict=True)]


def ties(sigma, at):
    return [abs(v - sigma[at]) <= sigma[0] * mpmath.mpf("1e-12") for v in sigma]


@checks(
    "steps.eigenvalues_after_well_step",
    "steps.certified_well_step",
    "steps.certified_well_factors",
    "steps.well_steps",
)
def well_steps(i: Inputs):
    sigma, d = i.sigma(), i.d + 1
    step = g.certified_well_step(sigma, d)
    after = g.eigenvalues_after_well_step(sigma, step, d)
    true = [mpmath.mpf(v) for v in sigma.tolist()]
    top = ties(true, 0)
    slope = [mpmath.mpf(t) / sum(top) - mpmath.mpf(1) / d for t in top]
    for found, wanted in zip(after.tolist(), moved(true, mpmath.mpf(step), slope), strict=True):
        assert close(found, wanted, 1e-13 * true[0])
    intervals = g.well_steps(sigma, d)
    assert bool(intervals) == (step > 0) == (not all(top))
    if step:
        assert float(after.max() / after.min()) < float(sigma[0] / sigma[-1]) * (1 + 1e-9)
        assert any(low < step <= high * (1 + 1e-9) for low, high in intervals)
    factors = finite(g.certified_well_factors(sigma, d, len(sigma)))
    even = [mpmath.mpf(f) ** 2 * s for f, s in zip(factors.tolist(), true, strict=True)]
    assert max(even) / min(even) <= 1 + mpmath.mpf("1e-9")


@checks("steps.certified_ill_step", "steps.ill_steps")
def ill_steps(i: Inputs):
    sigma = i.sigma()
    step = g.certified_ill_step(sigma)
    after = eigenvalues_after_ill_step(sigma, step)
    true = [mpmath.mpf(v) for v in sigma.tolist()]
    low, k = ties(true, -1), len(true)
    gap = mpmath.fsum(v**2 for v in true) / (2 * k) - true[-1] ** 2 / 2
    intervals = g.ill_steps(sigma)
    assert bool(intervals) == (step > 0) == (not all(low))
    if not step:
        assert after.tolist() == sigma.tolist()
        return
    slope = [(mpmath.mpf(t) / sum(low) - mpmath.mpf(1) / k) / gap**2 for t in low]
    for found, wanted in zip(after.tolist(), moved(true, mpmath.mpf(step), slope), strict=True):
        assert close(found, wanted, 1e-12 * wanted)
    assert float(after.max() / after.min()) > float(sigma[0] / sigma[-1])
    assert any(start < step < stop for start, stop in intervals)


def clear(*grams):
    """Whether both exact Grams are of full rank and κ below 10⁶."""
    return all(v[0] > 0 and v[-1] > v[0] * mpmath.mpf("1e-6") for v in map(eigenvalues, grams))


@checks(
    "frontier.ceiling", "frontier.ceilings", "frontier.whiten", "frontier.damped",
    "frontier.frontier", "frontier.Whitened.condition_number",
)  # fmt: skip
def ceilings(i: Inputs):
    p, h = i.x, i.h
    moments = gram_of(p), gram_of(h)
    found, damped = f.ceiling(*moments), f.ceiling(*moments, i.ridge)
    error = sum(quiet_spectrum(each).relative_error for each in moments)
    assert found >= 1 - 1e-6 - 20 * error
    reach = f.ceilings(*moments)
    assert found == reach.rir >= reach.shared > 0 and math.isfinite(reach.shared)
    assert 1 - 1e-6 - EPS / i.ridge * 1e3 <= damped < math.inf
    grams = [exact(x).T * exact(x) for x in (p, h)]
    theta = finite(f.frontier(*map(quiet_spectrum, moments), 10.0))
    if not clear(*grams) or eps_of(p.dtype) > 1e-6:
        return
    inverse = mpmath.inverse(mpmath.cholesky(grams[0] / grams[0][0, 0]))
    m, k_p, k_h = map(eigenvalues, (inverse * grams[1] * inverse.T, *grams))
    true = (m[0] / m[-1]) * (k_p[0] / k_p[-1]) / (k_h[0] / k_h[-1])
    assert close(found, true, 1e-4 * true)  # κ up to 10⁶ each, twelve digits left of κ(M)
    if i.d > 1 and m[0] > 2 * m[-1]:
        mapped = eigenvalues(exact(theta).T * grams[0] * exact(theta))
        assert close(float(mapped[0] / mapped[-1]), mpmath.mpf(10), 1e-4)


# Metrics, measurement, immunization


@checks("measure.spectrum_outline")
def outlined(i: Inputs):
    found = quiet_spectrum(gram_of(i.x))
    outline = spectrum_outline(found)
    assert outline["index"] == list(range(1, found.rank + 1))  # fewer than are kept
    for place, value in zip(outline["index"], outline["eigenvalues"], strict=True):
        assert value == pytest.approx(float(found.eigenvalues[place - 1]), rel=1e-3)


@checks("scores.class_scores")
def scored_by_class(i: Inputs):
    guesses, labels = i.labels(), i.labels(6)
    for number, found in enumerate(class_scores(guesses, labels, 3)):
        mine = [int(g) == number for g, y in zip(guesses, labels, strict=True) if y == number]
        assert found == round(sum(mine) / len(mine), 4) if mine else math.isnan(found)


def pair(i: Inputs, times: int = 1):
    drawn = {"p": (i.x, i.labels()), "h": (i.h, i.labels(6))}
    return [Task((x.repeat(times, 1), y.repeat(times)), name=n) for n, (x, y) in drawn.items()]


@checks(
    "rir.relative_immunization_ratio", "immunis.relative_immunization_ratio", "rir.rir",
    "rir.rir_of_spectra", "gram.check_pair",
)  # fmt: skip
def ratios(i: Inputs):
    ratios_of(i)


def ratios_of(i: Inputs, times: int = 1):
    theta = torch.eye(i.d, dtype=F) + 0.1 * i.targets(i.d)[:1].expand(i.d, -1)
    found = relative_immunization_ratio(theta, *pair(i, times))
    same = all(old.rank == new.rank for old, new in found.spectra.values())
    assert 0 < found.value < math.inf if same else math.isnan(found.value)
    k, t = [exact(x).T * exact(x) for x in (i.x, i.h)], exact(theta)
    after = [t.T * each * t for each in k]
    if same and clear(*k, *after) and eps_of(i.x.dtype) < 1e-6:
        kappas = [v[0] / v[-1] for v in map(eigenvalues, (*k, *after))]
        true = (kappas[3] / kappas[1]) / (kappas[2] / kappas[0])
        p, h = (tuple(map(float, (kappas[k], kappas[k + 2]))) for k in (0, 1))
        assert close(rir(primary=p, harmful=h).value, true, 8 * EPS * true)
        assert close(found.value, true, 1e-7 * true)


@checks("steps.norm_ratio_curve", "immunis.norm_ratio_curve", "steps.line_search")
def descent(i: Inputs):
    moments = gram_of(i.x, i.targets(scale=i.other_scale))
    curve = finite(norm_ratio_curve(moments, 5))
    assert float(curve[0]) == 1.0
    assert bool((curve >= 0).all())
    if quiet_spectrum(moments).condition_number < 1e6:
        assert bool((curve.diff() <= 1e-6).all())  # exact line search nears w* with every step
    path = itertools.islice(line_search(moments.matrix(), moments.cross()), 4)
    finite(torch.stack(list(path)))


@checks("scores.score", "scores.answers", "scores.row_hits", "scores.score_of")
def scores(i: Inputs):
    y = i.targets(scale=i.scale)
    wrong = y + i.features(5, i.other_scale).to(F)[:, :1]
    found = score(*answers(lambda inputs: wrong, Task((torch.ones(i.n, 1), y))), "regression")
    true, total = mpmath.mpf(0), mpmath.fsum(v**2 for v in centred(exact(y)))
    true = 1 - mpmath.fsum(v**2 for v in exact(wrong) - exact(y)) / total
    if true < -1e308:
        assert found == -math.inf or found < -1e307
        return
    assert close(found, true, 50 * i.n * EPS * (1 + abs(1 - true)))


@checks(
    "measure.measure", "immunis.measure", "gram.paired_grams", "measure.degenerate_columns",
    "measure.warn_if_deficient", "measure.measured", "gram.check_moments",
)  # fmt: skip
def measured(i: Inputs):
    tasks = pair(i)
    found = measure(*tasks)
    error = found.primary.relative_error + found.harmful.relative_error
    assert found.ceiling >= 1 - 1e-6 - 20 * error
    assert 0 <= found.free_directions <= i.d
    assert found.rho is None or -1e-9 <= found.rho <= 1 + 1e-9
    columns = degenerate_columns(paired_grams(*tasks)[0])
    x = i.x.to(F)
    assert columns["zero"] == (x == 0).all(0).nonzero().flatten().tolist()
    assert set(columns["constant"]) >= {
        c for c in range(i.d) if bool((x[:, c] == x[0, c]).all()) and bool(x[0, c])
    }


METHODS = {
    "condition": {"steps": 3}, "r_ill": {"steps": 3}, "imma": {"steps": 3, "inner_steps": 2},
    "opt_kappa": {"steps": 3}, "frontier": {}, "erase": {},
}  # fmt: skip


@checks("immunize.immunize", "immunis.immunize", *(f"methods.{name}.solve" for name in METHODS))
def immunized(i: Inputs):
    method = list(METHODS)[i.place % len(METHODS)]
    dtype = i.x.dtype if i.x.is_floating_point() else F
    tasks = pair(i)
    found = immunize(torch.eye(i.d, dtype=dtype), *tasks, method, **METHODS[method])
    weight = finite(found.model.weight)
    assert bool(weight.any())
    finite(found.head.weight)
    if found.exact and dtype is F:
        x = i.x.to(F)
        head = least_squares_head(gram_of(x, tasks[0].targets(i.labels())))
        change = float(torch.linalg.cond(weight))
        if change < 1e6:  # predictions stay what they were, up to the rounding of xW itself
            rounding = i.d * EPS * change * float(x.abs().max() * head.weight.norm())
            told = found.head(found.model(x))
            torch.testing.assert_close(told, head(x), rtol=0, atol=1e-6 + 10 * rounding)


@checks("scale.standardised")
def on_one_scale(i: Inputs):
    (task,) = standardised(Task((i.x, i.targets())))
    found = task.train.tensors()[0].double()
    finite(found)
    deviation = found.std(0, correction=0)
    slack = 1e-3 + 10 * eps_of(i.x.dtype) * i.n**0.5
    assert bool((found.mean(0).abs() <= slack).all())
    assert bool((((deviation - 1).abs() <= slack) | (deviation <= slack)).all())


@checks("erase.eraser")
def erased(i: Inputs):
    moments = gram_of(i.x, i.targets(scale=i.other_scale))
    projection, rank = eraser(moments)
    finite(projection)
    assert 1 <= rank <= min(2, i.d)
    spectrum_ = Spectrum.of(moments.scatter)
    if spectrum_.rank == i.d and spectrum_.condition_number < 1e6 and eps_of(i.x.dtype) < 1e-6:
        cross = moments.cross_scatter
        assert float((projection @ cross).abs().max()) < 1e-6 * float(cross.abs().max())


@checks(
    "linear.least_squares_head",
    "linear.compensated_head",
    "linear.invertible",
    "linear.checked_head",
)
def heads(i: Inputs):
    moments = gram_of(i.x, i.targets())
    head = least_squares_head(moments)
    finite(head.weight)
    finite(head.bias)
    task = Task((i.x, i.targets()))
    theta = i.features(5, i.other_scale)[:1].to(F).expand(i.d, -1) + torch.eye(i.d, dtype=F)
    checked = checked_head(head, theta, task)
    new, same = compensated_head(checked, theta, moments)
    finite(new.weight)
    assert same == invertible(theta)


@checks(
    "probes.ridge_probe",
    "probes.ridge_weights",
    "probes.ridges_of",
    "probes.Ridges.probe",
    "probes.Ridges.least_error",
)
def probed(i: Inputs):
    x, y = i.x, i.targets(scale=i.other_scale)
    weights, bias = ridge_probe(gram_of(x, y), i.ridge)
    finite(weights), finite(bias)
    z, t = centred(exact(x)), centred(exact(y))
    zz, zy = z.T * z, z.T * t
    trace = sum(zz[a, a] for a in range(i.d))
    if not trace:
        assert not bool(weights.any())
        return
    peak = max(abs(v) for v in exact(x))
    noise = 20 * EPS * peak / mpmath.sqrt(trace / i.n)
    true = mpmath.lu_solve(zz / trace + mpmath.eye(i.d) * (i.ridge / i.d), zy[:, 0] / trace)
    size = mpmath.sqrt(mpmath.fsum(v**2 for v in t) / trace)
    tolerance = 50 * i.n * i.d * (EPS + noise) * (1 + i.d / i.ridge) ** 2
    for found, wanted in zip(weights[:, 0].tolist(), true, strict=True):
        assert close(found, wanted, tolerance * size)
    ridges = ridges_of(x.to(F), y)
    assert ridges.least_error((0.1, 1.0)) in (0.1, 1.0)
    weights, bias = ridges.probe(i.ridge)
    said = z * true
    means = float(y[:, 0].mean())
    for found, wanted in zip((x.to(F) @ weights + bias)[:, 0].tolist(), said, strict=True):
        assert close(found - means, wanted, tolerance * size * peak * i.d)


@checks("bases.whitening")
def whitened(i: Inputs):
    x = i.x if i.x.is_floating_point() else i.x.to(F)
    mean, transform = whitening(x, 0.0)
    finite(mean), finite(transform)
    z = (x.to(F) - mean) @ transform
    covariance = z.T @ z / i.n
    if not transform.shape[1] or i.offset > 1 or i.kind == "constant":
        return  # what a large mean leaves of a small spread, rounding decides
    inverse = transform.square().sum(0)  # of the eigenvalues kept
    error = 100 * i.n * i.d * EPS * float(inverse.max() / inverse.min())
    if error < 0.1:
        eye = torch.eye(transform.shape[1], dtype=F)
        torch.testing.assert_close(covariance, eye, rtol=0, atol=error)


CLOSED_FORM = ("ridge", "knn", "kernel")


@checks(*(f"attacks.{name}" for name in CLOSED_FORM))
def attacked(i: Inputs):
    attack = ATTACKS[CLOSED_FORM[i.place % len(CLOSED_FORM)]]

    def data(seed):
        x, y = separable(60, seed)
        with np.errstate(over="ignore"):
            x = (x.astype(float) * i.scale).astype(
                {"float64": np.float64, "float16": np.float16}.get(i.dtype, np.float32)
            )
        return x, y  # what a model makes of damaged rows, the reader of features refuses

    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)
            self.body = nn.Identity()

        def forward(self, x):
            return self.head(self.body(x).to(self.head.weight))

    arena = arena_for(attack, data=data, model=Same().eval())
    if arena.cache[""][0].dtype != data(10)[0].dtype:
        arena.cache[""] = (data(10)[0], data(11)[0])
    settings_ = {name: options[0] for name, options in space_of(attack, arena).items()}
    reached = curves(attack, arena, [settings_])[0][-1].test
    x = arena.cache[""][0]
    if np.isfinite(x).all() and np.abs(x).max() > 1e3 * np.finfo(x.dtype).tiny:
        assert reached > 0.9


@checks("PreconditionedLinear", "immunis.PreconditionedLinear")
def preconditioned(i: Inputs):
    x = i.x if i.x.is_floating_point() else i.x.to(F)
    layer = PreconditionedLinear(i.d, 2, ridge=i.ridge, dtype=x.dtype)
    layer(x).backward(i.targets().to(x.dtype))
    found = finite(layer.weight.grad)
    matrix = exact(x).T * exact(x)
    with mpmath.workdps(700):
        damped = matrix + mpmath.eye(i.d) * i.ridge
    values = eigenvalues(damped)
    values[-1] = max(values[-1], mpmath.mpf(i.ridge))
    with mpmath.workdps(700):  # a ridge may be hundreds of digits below the features
        true = mpmath.lu_solve(damped, (exact(x).T * exact(i.targets().to(x.dtype)))[:, 0])
    size = max(abs(v) for v in exact(x).T * exact(i.targets().to(x.dtype))) / values[-1]
    error = 100 * i.n * i.d * EPS * (values[0] / values[-1]) + 2 * eps_of(x.dtype)
    for a in range(i.d):
        assert close(float(found[0, a]), true[a], error * size)


# The verdict's statistics


@checks("statistics.cost_to_reach", "statistics.stopped")
def statistics(i: Inputs):
    values = i.features().to(F)[:, 0].tolist()
    point = dict.fromkeys(cost.COSTS, 1.0)
    curve = cost.stopped([{**point, "validation": v, "test": v} for v in values])
    assert [p["score"] for p in curve] == list(
        itertools.accumulate((v if v == v else -math.inf for v in values), max)
    )
    assert cost.cost_to_reach(curve, math.inf)["steps"] in (1.0, math.inf)


@checks(
    "statistics.summarise", "statistics.replicated", "statistics.interval", "statistics.difference",
    "statistics.combined", "statistics.spread", "statistics.share", "statistics.largest",
    "statistics.worst_case", "statistics.add_costs", "statistics.mean_curve",
    "statistics.predictors", "statistics.factors", "statistics.non_inferiority",
    "statistics.Design.levels", "statistics.Design.follows", "statistics.Design.scale",
    "score_interval.score_interval", "score_interval.finest",
)  # fmt: skip
def verdicts(i: Inputs):
    names = ("original", "untrained", "defended")
    rng = np.random.default_rng(i.seed)
    answers = {name: rng.random((3, 20)) < rng.random() for name in names}
    rows = {
        name: [
            {
                "status": "done", "settings": {}, "trials": 1, "runs": 1, "search_flops": 1.0,
                "seconds": 1.0, "hits": packed(row),
                "curve": [
                    {**dict.fromkeys(cost.COSTS, 1.0), "validation": 1.0, "test": float(row.mean())}
                ],
            }
            for row in found
        ]
        for name, found in answers.items()
    }  # fmt: skip
    design = Design({name: [0] for name in names}, 3)
    table, scores = summary.summarise({"a": rows}, design, 20, "original", "untrained", 0.1)
    mean = {name: mpmath.mpf(int(found.sum())) / found.size for name, found in answers.items()}
    for other in ("untrained", "original"):
        gap = table["a"]["defended"][f"above_{other}"]
        assert close(gap["mean"], mean["defended"] - mean[other], 10 * EPS)
        assert gap["low"] <= gap["mean"] <= gap["high"]
    kept = table["a"]["defended"]["residual_advantage"]["mean"]
    if kept is not None:
        share = (mean["defended"] - mean["untrained"]) / (mean["original"] - mean["untrained"])
        assert close(kept, share, 1000 * EPS * (1 + abs(share)))
    case = summary.worst_case(table, scores, "defended", "original", "untrained", [])
    assert case["attack"] == "a"
    figures = {n: {"kappa_harmful": 1.0, "rir": 1.0, "rho": 0.0} for n in names}
    assert predictors(table, figures, names) is None  # fewer than eight models
    attackers = {"samples": 3, "rows": 16, "of": 20}
    assert claims.factors(design, "original", {}, attackers)["originals"] == 1
    assert design.scale("defended") == 1 and not design.follows("defended")
    one, other = (answers[name].mean(0) for name in ("defended", "original"))
    low, high = score_interval(one, other)
    assert -1 <= low <= one.mean() - other.mean() <= high <= 1 and high - low > finest(20)
    assert score_interval(other, one) == pytest.approx((-high, -low))
    low, high = score_interval(one)
    assert 0 <= low <= one.mean() <= high <= 1 and high - low > finest(60) / 2
    hits = {name: found[:1] for name, found in answers.items() if name != "untrained"}
    change = summary.non_inferiority(hits, design, ["original"], 0.005)["defended"]["original"]
    once = {name: mpmath.mpf(int(found.sum())) / found.size for name, found in hits.items()}
    assert close(change["mean"], once["defended"] - once["original"], 10 * EPS)


# Scaling itself


@checks(
    "checks.power_of_two", "checks.in_dtype", "checks.check_size", "checks.real", "checks.square"
)
def scaling(i: Inputs):
    x = numbers.real(i.x)
    numbers.check_size(x, "x")
    power = numbers.power_of_two(x.to(F))
    assert not x.any() or 1 <= float((x.to(F) / power).abs().max()) < 2
    finite(numbers.in_dtype(x.to(F), x.dtype, "x"))


# What runs them


# The least share of drawn cases that a check must answer and not refuse: four fifths of what it
# answered in the record, and all if it answered all. The rest holds NaN or infinities, is out of
# range or is too little: one sample, zero features. Some checks draw two tasks, of use both.
RECORD = Record.load(RESULTS / "fuzz.json").figures["checks"]
USUAL = 0.5  # of a check that the record lacks


def floor(name):
    if name not in RECORD:
        return USUAL
    share = RECORD[name]["right"] / (RECORD[name]["right"] + RECORD[name]["refused"])
    return share if share == 1 else 0.8 * share


def hold(check, cases, examples, record, wide=False):
    """Run a check on many drawn cases, and hold the share of them that gets a right answer.

    ``record`` keeps the counts for the record of ``make fuzz``, refusals by their message too. A
    case that is neither right nor refused is a wrong number, unless the share alone is missed.
    ``make fuzz`` keeps it in ``.hypothesis/fuzz`` and begins with it the next time.
    """
    name = check.__name__ + " (wide)" * wide
    told = {"right": 0, "refused": 0, "wrong": 1, "long": 0, "longest": 0, "reasons": {}}
    record(name, told)
    kept = DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "fuzz" / name) if LONG else None

    @settings(
        deadline=None, derandomize=not LONG, database=kept, print_blob=LONG, max_examples=examples
    )
    @given(cases)
    def run(drawn):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning of torch or numpy is a silent wrong number
            for told_of in (RankWarning, ScaleWarning, LostPrimaryWarning):
                warnings.simplefilter("ignore", told_of)
            told["long"] += check in OF_LONG and drawn.long >= 10**4
            told["longest"] += check in OF_LONG and drawn.long == 10**6
            try:
                check(drawn)
                told["right"] += 1
            except ImmunisError as error:
                told["refused"] += 1
                reason = re.sub(r"\S*\d\S*", "#", str(error))[:60]
                told["reasons"][reason] = told["reasons"].get(reason, 0) + 1

    run()
    told["wrong"] = 0
    share = told["right"] / (told["right"] + told["refused"])
    assert share >= floor(name), told


SLOW = (attacked,)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.slow] if check in SLOW else [], id=check.__name__)
        for check in dict.fromkeys(CHECKS.values())
    ],
)
def test_the_answer_is_right_or_refused(check, record_property):
    most = settings.default.max_examples
    hold(check, inputs(), most // 3 if check in COSTLY else most, record_property)


OF_LONG = (long_sums, long_figures)
COSTLY = (*OF_LONG, *SLOW)
OF_MATRICES = (bare_matrices, both_projectors, well, ill, condition)


@pytest.mark.slow
@pytest.mark.parametrize("check", OF_MATRICES, ids=lambda check: check.__name__)
def test_wide_matrices_are_right_or_refused(check, record_property):
    hold(check, inputs(most=40), settings.default.max_examples // 3, record_property, True)


ROOMS = (
    "theory.gram", "theory.summation", "theory.spectrum", "theory.regularizers", "theory.steps",
    "theory.frontier",
    "theory.rir", "theory.measure", "theory.probes", "theory.scores", "theory.score_interval",
    "data.checks", "audits.statistics.claims",
    "audits.statistics.bootstrap", "audits.statistics.cost", "audits.statistics.predictors",
    "audits.statistics.summary", "models.linear",
)  # fmt: skip
ELSEWHERE = {
    "checks.as_tensor": "of data: tests/data",
    "checks.check_batch": "of data: tests/data",
    "checks.epsilon_of": "of data: tests/data",
    "checks.hash_rows": "of data: tests/data",
    "measure.spectrum_figures": "copies figures of a spectrum",
    "measure.data_figures": "names and hashes of data",
    "measure.Measurement": "holds figures",
    "card.write_card": "writes a page: tests/report/test_card",
    "linear.linear_layer": "copies weights",
    "linear.theta_and_bias": "reads weights",
    "linear.in_dtype_of": "casts weights",
    "linear.fit_logistic_head": "fits by the L-BFGS of torch: tests/extras/test_sentences",
    "statistics.last_points": "selects points",
}


def public():
    """Every public function of the numerical rooms, and what the package exports as one."""
    for room in ROOMS:
        module, short = importlib.import_module(f"immunis.{room}"), room.split(".")[1]
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", "") != module.__name__:
                continue
            if inspect.isfunction(thing):
                yield f"{short}.{name}"
            if inspect.isclass(thing):
                for method, body in vars(thing).items():
                    if not method.startswith("_") and inspect.isfunction(
                        getattr(body, "__func__", body)
                    ):
                        yield f"{short}.{name}.{method}"
    for name in immunis.__all__:
        if inspect.isfunction(getattr(immunis, name)):
            yield getattr(immunis, name).__module__.split(".")[-1] + f".{name}"


def test_every_public_function_has_a_check():
    elsewhere = {*ELSEWHERE, "audit.audit"}  # its figures come from functions checked here
    assert not {name for name in public() if name not in CHECKS and name not in elsewhere}
