"""Curves over the number of the attacker's rows."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from helpers.arenas import arena_for, separable
from helpers.audits import run
from immunis import write_card
from immunis.attacks import ATTACKS
from immunis.attacks.search import search
from immunis.audits.samples import few_of_each, sample_curve
from immunis.report.audit_tables import samples_table


def noisy(seed, n=600):
    x, y = separable(n, seed)
    return x + 2 * np.random.default_rng(seed).normal(size=x.shape).astype(np.float32), y


def test_more_rows_read_more_and_all_rows_read_what_the_probes_read():
    arena = arena_for(ATTACKS["ridge"], data=noisy, model=torch.eye(6))
    curve = sample_curve(arena)
    points = curve["points"]
    assert [p["per_class"] for p in points] == [1, 5, 10, 50, None]
    assert [p["rows"] for p in points] == [3, 15, 30, 150, 600]
    assert [len(p["scores"]) for p in points] == [3, 3, 3, 3, 1]
    means = [p["mean"] for p in points]
    assert means[0] < means[2] - 0.1 and means[3] <= means[4] + 0.02
    assert means[0] < curve["area"] < means[-1]
    probes = [search(ATTACKS[name], arena).points[-1] for name in ("ridge", "logistic")]
    assert means[-1] == max(probes, key=lambda p: p.validation).test


def test_features_without_the_label_give_a_flat_curve_at_chance():
    def blind(seed):
        return noisy(seed)[0], np.random.default_rng(seed).integers(0, 3, 600)

    curve = sample_curve(arena_for(ATTACKS["ridge"], data=blind, model=torch.eye(6)), (5, 50))
    assert all(abs(p["mean"] - 1 / 3) < 0.1 for p in curve["points"])
    assert curve["area"] == pytest.approx(1 / 3, abs=0.05)


def test_counts_that_would_take_every_row_are_all_rows():
    arena = arena_for(ATTACKS["ridge"], data=lambda seed: separable(30, seed), model=torch.eye(6))
    assert [p["per_class"] for p in sample_curve(arena, (5, 10, 50))["points"]] == [5, None]


def test_rows_are_drawn_of_each_class_and_a_rare_class_gives_what_it_has():
    labels = np.array([0] * 20 + [1] * 3 + [2] * 20)
    first, second = (few_of_each(labels, 5, seed) for seed in (0, 1))
    assert np.bincount(labels[first]).tolist() == [5, 3, 5]
    assert len(set(first)) == 13 and set(first) != set(second)


def test_an_audit_with_both_probes_has_a_curve_of_every_model(models, tasks):
    alone = {"original": models["original"]}
    found = run(alone, tasks, ["ridge", "logistic"], seeds=1).record
    curves = found.figures["samples"]
    assert set(curves) == {"original", "untrained"}
    table = samples_table(found)
    assert table.columns[0] == "model" and table.columns[-2:] == ["all", "area"]
    assert len(table.rows) == len(curves)
    assert not run(alone, tasks, ["ridge"], seeds=1).record.figures["samples"]


def test_every_training_of_a_model_counts(models, tasks, tmp_path):
    """Of two trainings that read differently, the curve is the mean, with its spread."""
    given = models["original"]
    blind = nn.Sequential(*[copy.deepcopy(layer) for layer in given]).eval()
    with torch.no_grad():
        blind[-2].weight.zero_()
    both = {"original": given, "trained": [given, blind]}
    record = run(both, tasks, ["ridge", "logistic"], seeds=1).record
    curves = record.figures["samples"]
    for alone, two in zip(*(curves[name]["points"] for name in both), strict=True):
        draws = len(alone["scores"])
        assert two["scores"][:draws] == alone["scores"] and len(two["scores"]) == 2 * draws
        assert two["mean"] == pytest.approx(np.mean(two["scores"]))
        assert two["spread"] == pytest.approx(np.std(two["scores"], ddof=1))
        assert two["mean"] < alone["mean"]
    assert curves["original"]["points"][-1]["spread"] is None
    assert curves["trained"]["spread"] > 0.1 and curves["original"]["spread"] is None
    row = samples_table(record).rows[list(curves).index("trained")]
    assert all("±" in cell for cell in row[1:])
    page = write_card(tmp_path / "card.html", record).read_text()
    assert samples_table(record).title in page and row[-1] in page
