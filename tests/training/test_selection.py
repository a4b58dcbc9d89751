"""The best evaluation is chosen on held-out rows."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from helpers.networks import tasks
from helpers.training import SHORT, objective, run, whole
from immunis import NumericalError, Task
from immunis.data.loader import Stream, held_out
from immunis.models.find_cut import cut
from immunis.theory.gram import gram_of
from immunis.theory.probes import ridge_probe
from immunis.training import selection
from immunis.training.loop import fit
from immunis.training.objective import SUPERVISED, Objective, supervised_only
from immunis.training.selection import (
    RIDGES,
    crossed,
    doubts,
    held_out_figures,
    merit,
    probe_figures,
    ridge_answers,
)
from immunis.training.settings import Training


def test_the_judge_is_not_fooled_by_a_network_that_learned_its_rows_by_heart():
    rows = torch.arange(200.0)[:, None]
    task = Task((rows, torch.arange(200) % 4), name="numbered")
    trained, kept = held_out(200, 0.2)
    stream = Stream(task, 32, trained)

    def read(inputs):  # features of unseen rows are their labels, those of training rows nothing
        rows = inputs[:, 0].long()
        z = nn.functional.one_hot(rows % 4, 4).float()
        return z, {"": torch.where(torch.isin(rows, trained)[:, None], torch.zeros_like(z), z)}

    figures = held_out_figures((stream, stream), (kept, kept), read)
    assert figures["probe"] == 1.0
    assert figures["rho"] == 0.0
    assert figures["probe_trained"] < 0.5
    before = figures | {"probe_trained": 1.0}
    assert "100.0% of harmful rows that were held out" in doubts(figures, before)[0]
    assert not doubts(figures, figures)  # it was so before training: nothing was learned
    assert not doubts(figures | {"probe_held": figures["probe_trained"]}, before)
    hidden = figures | {"probe_trained": 0.0, "probe_held": 0.3, "probe": figures["chance"]}
    assert not doubts(hidden, figures)
    assert "too few rows to judge by" in doubts(figures, before | {"probe": 0.3})[0]


def test_the_judge_brings_rows_to_one_length_too():
    draws = torch.Generator().manual_seed(9)
    labels = torch.arange(400) % 2
    z = torch.randn(400, 8, generator=draws)
    z[:, 0] += 3.0 * (2 * labels - 1)
    z *= 10 ** (6 * torch.rand(400, 1, generator=draws))  # a few long rows hide the rest
    figures = probe_figures((0 * z, labels), (z, labels), "classification", 2)
    assert figures["probe_held"] == crossed((z, labels), "classification", 2) < 0.8
    assert figures["probe"] > 0.99


def test_a_defence_that_memorised_its_sample_says_so():
    torch.manual_seed(0)
    inputs = torch.randn(2000, 300)
    inputs[:, 4:7] *= 4
    primary = Task((inputs, inputs[:, :4].argmax(1)), name="primary")
    harmful = Task((inputs, inputs[:, 4:7].argmax(1)), name="harmful")
    model = nn.Sequential(nn.Linear(300, 256), nn.ReLU(), nn.Linear(256, 32), nn.Linear(32, 4))
    training = Training(steps=100, held_out=0.85, evaluate=1, tolerance=1.0)
    cut_model = cut(model.eval(), inputs[:2], 4)
    with pytest.warns(UserWarning, match="memorised those"):
        result = fit(cut_model, objective("probe", cut_model), primary, harmful, training)
    assert "memorised" in result.notes[-1]


@pytest.mark.parametrize("rows", [2, 3, 40])
def test_the_judge_asks_only_probes_that_have_not_seen_the_row(rows):
    labels = torch.arange(rows)  # one row a class: who has not seen it cannot know it
    assert crossed((torch.eye(rows), labels), "classification", rows) == 0.0


@pytest.mark.parametrize("shape", [(50, 8), (8, 50), (1, 3), (3, 1)])
def test_the_judges_probes_are_those_of_the_ridge_attack(shape):
    torch.manual_seed(0)
    z, y, new = (torch.randn(*s).double() for s in (shape, (shape[0], 2), (4, shape[1])))
    for ridge, answers in zip(RIDGES, ridge_answers(z, y, new), strict=True):
        weights, bias = ridge_probe(gram_of(z, y), ridge)
        torch.testing.assert_close(answers, new @ weights + bias, rtol=1e-6, atol=1e-8)


def test_features_that_did_not_change_are_not_called_learned_by_heart():
    torch.manual_seed(0)
    labels = torch.randint(20, (2000,))
    features = 0.5 * torch.nn.functional.one_hot(labels, 20) + torch.randn(2000, 20)
    for share in (100, 1000, 1800):
        held, seen = (features[:share], labels[:share]), (features[share:], labels[share:])
        figures = probe_figures(seen, held, "classification", 20)
        assert not any("by heart" in doubt for doubt in doubts(figures, figures))


def test_primary_features_that_lost_directions_have_no_merit_of_it():
    start = {"primary": 0.9, "kappa_primary": 1e4, "kappa_harmful": 1e4}
    start |= {"rank_primary": 8, "rank_harmful": 8}
    better = start | {"kappa_primary": 1e3}
    collapsed = start | {"kappa_primary": 1.0, "rank_primary": 1}
    runs = [start, better, collapsed]
    assert merit(better, runs, "rir", 0.89)[0] == pytest.approx(math.log(10))
    assert merit(collapsed, runs, "rir", 0.89) == merit(start, runs, "rir", 0.89)
    grown = start | {"kappa_harmful": 1e10, "rank_harmful": 9}
    assert merit(grown, runs, "rir", 0.89) == merit(start, runs, "rir", 0.89)


def test_below_chance_is_no_merit_and_the_primary_score_breaks_ties():
    start = {"primary": 0.9, "probe": 0.8, "chance": 0.2, "noise": 0.0}
    low, lower = start | {"probe": 0.2, "primary": 0.91}, start | {"probe": 0.1}
    runs = [start, low, lower]
    assert merit(low, runs, "probe", 0.89) > merit(lower, runs, "probe", 0.89)
    assert merit(start | {"primary": 0.5, "probe": 0.0}, runs, "probe", 0.89)[0] == -math.inf


def test_of_probes_a_standard_error_apart_the_primary_score_decides():
    start = {"primary": 0.9, "probe": 0.8, "chance": 0.2, "noise": 0.01, "step": 0}
    luck = start | {"probe": 0.400, "primary": 0.900, "step": 1}
    late = start | {"probe": 0.405, "primary": 0.905, "step": 2}
    high = start | {"probe": 0.411, "primary": 0.999, "step": 3}
    cost = start | {"probe": 0.300, "primary": 0.500, "step": 4}
    rows = [start, luck, late, high, cost]
    assert max(rows[1:], key=lambda row: merit(row, rows, "probe", 0.88)) is late
    rows.append(start | {"probe": 0.2, "step": 5})
    assert max(rows[1:], key=lambda row: merit(row, rows, "probe", 0.88)) is rows[-1]


def test_the_judge_knows_how_sure_it_is():
    torch.manual_seed(0)
    labels, features = torch.arange(400) % 4, torch.randn(400, 8)
    parts = (features[:200], labels[:200]), (features[200:], labels[200:])
    found = probe_figures(*parts, "classification", 4)
    p = found["probe"]
    assert found["noise"] == pytest.approx(math.sqrt(p * (1 - p) / 200))
    real = [(z, y[:, None].double()) for z, y in parts]
    assert probe_figures(*real, "regression", 1)["noise"] == 0


def test_weights_that_break_at_an_evaluation_say_so_too(tmp_path, monkeypatch):
    measured = selection.held_out_figures

    def broken(streams, held, forward, *more):
        def worse(inputs):
            answers, features = forward(inputs)
            return answers, {name: z * math.nan for name, z in features.items()}

        spoiled = (tmp_path / "checkpoint.pt").exists()
        return measured(streams, held, worse if spoiled else forward, *more)

    monkeypatch.setattr(selection, "held_out_figures", broken)
    with pytest.raises(NumericalError, match=r"at step 4: the features of .*checkpoint\.pt"):
        run(folder=tmp_path)


def test_early_stopping_keeps_the_best_and_stops_in_time():
    training = dataclasses.replace(SHORT, steps=40, evaluate=20, patience=2, rate=1e-6)
    result = run("probe", training)
    assert result.steps < 40
    assert result.best_step <= result.steps


def test_a_run_that_loses_the_primary_task_says_so():
    training = dataclasses.replace(SHORT, tolerance=0.0, rate=0.3, steps=20)
    primary, harmful = tasks()
    pre = Training(layers=["*"], epochs=6, batch=32, rate=1e-2, batchnorm="update")
    trained = fit(whole(), supervised_only(), primary, None, pre).model
    ruin = Objective(lambda view: {SUPERVISED: -view.supervised})
    with pytest.warns(UserWarning, match="within the tolerance"):
        result = fit(whole(trained), ruin, primary, harmful, training)
    assert result.notes


@pytest.mark.parametrize("rare", [2, 5, 10])
def test_every_fold_of_the_judge_has_its_share_of_each_class(monkeypatch, rare):
    labels, seen = torch.zeros(200, dtype=torch.int64), []
    labels[:rare] = 1

    def answers(z, targets, out):
        seen.append(int(out.sum()))
        return [torch.zeros(len(out), 2, dtype=torch.float64) for _ in RIDGES]

    monkeypatch.setattr(selection, "ridge_answers", answers)
    crossed((labels[:, None].float(), labels), "classification", 2)
    assert sum(seen) == rare and max(seen) - min(seen) <= 1
