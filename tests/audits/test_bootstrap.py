"""Intervals over trainings, attackers and test rows."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from immunis import InputError
from immunis.attacks.sampling import sample
from immunis.audits.statistics import bootstrap
from immunis.audits.statistics.bootstrap import (
    Design,
    Estimate,
    difference,
    interval,
    largest,
    replicated,
    spread,
)


def answers(rng, runs, rows, share=0.6):
    return rng.random((runs, rows)) < share


def naive(hits, design, replicates, seed, part=None):
    """Draw runs and rows one by one and score them: what weights and products stand for."""
    rng = np.random.default_rng(seed)
    rows = next(iter(hits.values())).shape[1]

    def draws(levels, count=replicates):
        return rng.integers(levels, size=(count, max(1, levels - 1)))

    seeds, originals = draws(design.seeds), draws(design.originals)
    variants = {}
    for model in sorted(hits):
        origins = design.origins[model]
        if len(origins) == 1:
            variants[model] = [[0]] * replicates
        elif design.originals > 1:
            variants[model] = [
                [v for o in chosen for v, origin in enumerate(origins) if origin == o]
                for chosen in originals
            ]
        else:
            variants[model] = draws(len(origins)).tolist()
    size = part or replicates
    chosen_rows = np.concatenate(
        [draws(rows, min(size, replicates - start)) for start in range(0, replicates, size)]
    )
    found = {model: [] for model in hits}
    for b in range(replicates):
        for model, of in hits.items():
            scores = []
            for v in variants[model][b]:
                for s in seeds[b]:
                    run = of[v * design.seeds + s]
                    if of.dtype == bool:
                        scores.append(np.mean([run[r] for r in chosen_rows[b]]))
                    else:
                        scores.append(1 - rows * np.mean([run[r] for r in chosen_rows[b]]))
            found[model].append(np.mean(scores))
    return found


@pytest.mark.parametrize("origins", [[0, 0, 0], [0, 1, 2, 0, 1, 2], [0]])
@pytest.mark.parametrize("floats", [False, True])
def test_replicates_equal_runs_and_rows_drawn_one_by_one(origins, floats, monkeypatch):
    rng = np.random.default_rng(0)
    design = Design({"o": sorted(set(origins)), "d": origins, "u": [0]}, seeds=3)
    hits = {m: answers(rng, len(of) * 3, 11) for m, of in design.origins.items()}
    if floats:
        hits = {m: of * rng.random(of.shape) / 11 for m, of in hits.items()}
    monkeypatch.setattr(bootstrap, "CHUNK", 11 * 7)  # seven replicates at a time
    found = replicated(hits, design, str, replicates=20, seed=5)
    expected = naive(hits, design, 20, 5, part=7)
    for model in hits:
        assert found[model].draws[0] == pytest.approx(expected[model], abs=1e-6)
        score = hits[model].mean() if not floats else 1 - hits[model].sum(1).mean()
        assert found[model].point == pytest.approx(score)


def test_each_factor_alone_has_the_variance_of_a_mean():
    rng = np.random.default_rng(1)
    hits = {"m": answers(rng, 15, 40)}
    found = replicated(hits, Design({"m": [0] * 5}, 3), str, replicates=20_000)["m"]
    cube = hits["m"].reshape(5, 3, 40)
    for part, axes, levels in ((1, (1, 2), 5), (2, (0, 2), 3), (3, (0, 1), 40)):
        expected = cube.mean(axes).var(ddof=1) / levels
        assert found.draws[part].var() == pytest.approx(expected, rel=0.06)
    assert found.freedom == (4, 2, 39)


def test_seeds_that_leave_out_parts_vary_as_a_grouped_jackknife_says():
    rng = np.random.default_rng(1)
    for seeds in (2, 3, 5, 10):
        hits = {"m": answers(rng, seeds, 40)}
        found = replicated(hits, Design({"m": [0]}, seeds, 5), str, replicates=20_000)["m"]
        expected = 4**2 / 5 * hits["m"].mean(1).var(ddof=1)
        assert found.draws[2].var() == pytest.approx(expected, rel=0.06)
        assert found.draws[0].mean() == pytest.approx(found.point, abs=0.01)


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_cover_the_mean_over_samples_of_the_attacker(seeds):
    """Ridge on samples of one pool, against the mean over many pools; the test rows stay."""
    world = np.random.default_rng(0)
    truth, d, rows = world.normal(size=12), 12, 60

    def drawn(rng, count):
        x = rng.normal(size=(count, d))
        return x, (x @ truth + 3 * rng.normal(size=count) > 0).astype(int)

    test = drawn(world, 2000)

    def hits(pool, draw):
        own = sample(pool[1], "classification", draw)
        x, y = pool[0][own], 2.0 * pool[1][own] - 1
        w = np.linalg.solve(x.T @ x + np.eye(d), x.T @ y)
        return (test[0] @ w > 0) == test[1]

    pools = [drawn(np.random.default_rng(1 + i), rows) for i in range(150)]
    runs = [np.stack([hits(pool, seed) for seed in range(seeds)]) for pool in pools]
    mean, inside, bare = np.mean([of.mean() for of in runs]), 0, 0
    for of in runs:
        found, plain = (
            interval(
                replicated({"m": of}, Design({"m": [0]}, seeds, parts), str, replicates=400)["m"]
            )
            for parts in (5, 0)
        )
        inside += found["low"] <= mean <= found["high"]
        bare += plain["low"] <= mean <= plain["high"]
    assert inside >= 0.92 * len(pools) > 0.85 * len(pools) > bare, (inside, bare)


def test_variants_of_some_originals_are_refused_and_of_one_are_drawn_themselves():
    with pytest.raises(InputError, match="d: its variants come from 2 of 3 originals"):
        Design({"o": [0, 1, 2], "d": [0, 1]}, 2)
    design = Design({"o": [0, 1, 2], "d": [0, 0, 0]}, 2)
    hits = {m: answers(np.random.default_rng(0), 6, 30) for m in ("o", "d")}
    found = replicated(hits, design, str)
    assert np.isfinite(found["d"].draws).all() and found["d"].freedom == (2, 1, 29)


def test_rows_alone_give_the_interval_of_a_proportion():
    hits = {"m": np.arange(400)[None] % 4 == 0}
    found = interval(replicated(hits, Design({"m": [0]}, 1), str)["m"])
    reach = 1.96 * math.sqrt(0.25 * 0.75 / 400)
    assert found["mean"] == 0.25
    assert found["low"] == pytest.approx(0.25 - reach, abs=0.006)
    assert found["high"] == pytest.approx(0.25 + reach, abs=0.006)


def test_rows_shared_by_two_models_cancel_in_their_difference():
    rng = np.random.default_rng(2)
    one = answers(rng, 1, 500)
    other = one.copy()
    other[0, :5] = ~other[0, :5]
    found = replicated({"a": one, "b": other}, Design({"a": [0], "b": [0]}, 1), str)
    assert spread(difference(found["a"], found["b"])) < 0.3 * spread(found["a"])
    same = difference(found["a"], found["a"])
    assert (same.point, spread(same)) == (0, 0)


def test_the_originals_that_two_models_share_cancel_in_their_difference():
    rng = np.random.default_rng(3)
    level = np.array([0.3, 0.5, 0.7])
    original = rng.random((3, 800)) < level[:, None]
    defended = rng.random((3, 800)) < level[:, None] - 0.1
    apart = {"o": original, "d": defended}
    paired = replicated(apart, Design({"o": [0, 1, 2], "d": [0, 1, 2]}, 1), str)
    assert spread(difference(paired["d"], paired["o"])) < 0.3 * spread(paired["d"])


def test_one_run_says_nothing_of_other_runs_and_one_row_nothing_at_all():
    few = replicated({"m": np.array([[True]])}, Design({"m": [0]}, 1), str)["m"]
    assert math.isnan(interval(few)["low"]) and interval(few)["mean"] == 1
    assert replicated({}, Design({"m": [0]}, 1), str) == {}


def test_a_diverged_score_has_no_interval_and_is_never_the_largest():
    lost = np.full((2, 30), np.inf)
    kept = np.random.default_rng(4).random((2, 30)) / 60
    design = Design({"lost": [0], "kept": [0]}, 2)
    found = replicated({"lost": lost, "kept": kept}, design, str)
    told = interval(found["lost"])
    assert told["mean"] == -math.inf and math.isnan(told["low"])
    best = largest([found["lost"], found["kept"]])
    assert np.array_equal(best.draws, found["kept"].draws) and best.point == found["kept"].point


def test_the_largest_is_chosen_anew_in_each_replicate():
    draws = np.zeros((4, 100))
    up, down = draws.copy(), draws.copy()
    up[0], down[0] = np.linspace(-1, 1, 100), np.linspace(1, -1, 100)
    best = largest([Estimate(0.0, up, (0, 0, 9)), Estimate(0.0, down, (0, 0, 9))])
    assert np.array_equal(best.draws[0], np.abs(up[0]))
    told = interval(best, selected=True)
    assert told["low"] == -told["high"]  # as far down as up


def test_memory_does_not_grow_with_replicates(monkeypatch):
    monkeypatch.setattr(bootstrap, "CHUNK", 1 << 16)
    hits = {"m": answers(np.random.default_rng(0), 4, 2000)}

    def peak(replicates):
        tracemalloc.start()
        replicated(hits, Design({"m": [0, 0]}, 2), str, replicates=replicates)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    grown = peak(2000) - peak(200)
    assert grown < 1 << 20  # the scores of each replicate; all weights of rows would be 32 MB


def simulated(rng, variants, seeds, rows, attacks=1):
    """Answers with effects of trainings, attackers, rows and their mixtures, and the truth."""
    row, seed = rng.normal(0, 1, rows), rng.normal(0, 0.3, seeds)
    hits, truth = {}, {}
    for attack in range(attacks):
        own = rng.normal(0, 0.5, rows)
        for model, count, mean in (("d", variants, 0.0), ("u", 1, -1.0)):
            training = rng.normal(0, 0.3, count) * (count > 1)
            latent = mean + row + own + training[:, None, None] + seed[:, None]
            latent = latent + rng.normal(0, 0.15, (count, seeds, 1))
            latent = latent + rng.normal(0, 0.5, (count, seeds, rows))
            hits[attack, model] = (latent > 0).reshape(-1, rows)
            spread = 1 + 0.25 + 0.09 * (count > 1) + 0.09 + 0.0225 + 0.25
            truth[attack, model] = stats.norm.cdf(mean / math.sqrt(spread))
    return hits, truth


@pytest.mark.parametrize(
    ("variants", "seeds", "rows", "attacks"),
    [(1, 3, 100, 1), (3, 3, 100, 1), (3, 2, 200, 1), (5, 5, 100, 1), (3, 3, 200, 5)],
)
def test_intervals_cover_the_truth_in_simulated_audits(variants, seeds, rows, attacks):
    design = Design({"d": [0] * variants, "u": [0]}, seeds)
    inside = np.zeros(2)
    for run in range(300):
        hits, truth = simulated(np.random.default_rng(run), variants, seeds, rows, attacks)
        found = replicated(hits, design, lambda key: key[1], replicates=400, seed=run)
        gains = [difference(found[a, "d"], found[a, "u"]) for a in range(attacks)]
        exact = [truth[a, "d"] - truth[a, "u"] for a in range(attacks)]
        one, most = interval(gains[0]), interval(largest(gains), selected=True)
        inside += one["low"] <= exact[0] <= one["high"], most["low"] <= max(exact) <= most["high"]
    assert (inside / 300 >= 0.9).all() and (inside / 300 <= 0.98).all(), inside / 300
