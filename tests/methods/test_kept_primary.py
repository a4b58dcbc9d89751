"""A model that lost its primary task is not released without a word."""

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from helpers.tasks import make_task
from immunis import InputError, LostPrimaryWarning, Record, Task, immunize
from immunis.methods.kept_primary import most_lost, primary_kept, warns
from immunis.report.export import export
from immunis.report.model_card import model_card
from immunis.report.text import headline, lost_primary, lost_some
from immunis.theory.score_interval import finest


@pytest.fixture
def ruined(pair):
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 3)).eval()
    result = immunize(network, *pair, "erase")
    figures = copy.deepcopy(result.record.figures)
    figures["primary_score"] |= judged(80, 0.8, 0.33)
    figures["primary_score"] |= {"before": 0.8, "after": 0.33}
    return result.model, Record(
        "immunize", "ruined", figures, result.record.settings, result.record.data
    )


def answered(rows, right):
    return np.arange(rows) < round(right * rows)


def judged(rows, before, after, tolerance=0.005):
    """What is said of two models, the first of which is right wherever the second is."""
    return primary_kept(before, after, (answered(rows, before), answered(rows, after)), tolerance)


def test_the_bound_is_four_tolerances_and_the_uncertainty_of_the_rows_that_differ():
    same = answered(100, 0.8)
    assert most_lost(same, same, 0.005) == pytest.approx(0.02 + finest(100))
    few = [most_lost(answered(n, 0.8), answered(n, 0.75), 0.005) for n in (100, 1000, 10**6)]
    assert few[0] > few[1] > few[2] == pytest.approx(0.02, abs=1e-3)
    errors = np.full(100, 0.01)
    assert most_lost(errors, 2 * errors, 0.005) == 0.02  # R²


def test_a_loss_on_few_rows_is_refused_where_the_rows_agree_that_it_is_one():
    assert judged(100, 0.8, 0.69)["kept"] is False  # noise of two independent scores
    assert judged(100, 0.8, 0.74)["kept"] is False
    assert judged(100, 0.8, 0.78)["kept"] is True
    assert judged(2000, 0.8, 0.33)["kept"] is False
    assert judged(2000, 0.8, 0.79)["kept"] is True
    both = answered(100, 0.8), ~answered(100, 0.26)  # all but six rows answered otherwise
    assert primary_kept(0.8, 0.74, both, 0.005)["kept"] is True
    one = np.zeros(1)
    assert primary_kept(0.9, float("-inf"), (one, one), 0.005)["kept"] is False
    assert primary_kept(None, None, (one, one), 0.005)["kept"] is None


def test_a_loss_between_the_tolerance_and_the_refusal_is_warned_of():
    def defence(before, after):
        score = {"before": before, "after": after, "split": "test", "most_lost": 0.03}
        score["kept"] = before - after <= 0.03
        definition = {"score": {"holds": after - before >= -0.005}}
        figures = {"primary_score": score, "definition": definition}
        return SimpleNamespace(kept=score["kept"], record=SimpleNamespace(figures=figures))

    told = "fell from 0.8 to 0.78 on test data: more than the tolerance. From a loss of 0.03 on"
    with pytest.warns(LostPrimaryWarning, match=told):
        warns(defence)(0.8, 0.78)
    with pytest.warns(LostPrimaryWarning, match="by more than 0.03: .* Do not release it"):
        warns(defence)(0.8, 0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warns(defence)(0.8, 0.798)


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_a_ruined_model_warns_and_is_flagged():
    primary = make_task(2000, seed=1)
    same = Task(primary.train.tensors(), name="the same labels")
    with pytest.warns(LostPrimaryWarning, match="Do not release it"):
        result = immunize(torch.eye(5), primary, same, "erase", strength=0.0)
    assert result.kept is False
    assert result.record.figures["primary_score"]["kept"] is False


@pytest.mark.filterwarnings("error::immunis.LostPrimaryWarning")
def test_a_kept_primary_task_warns_of_nothing(pair):
    assert immunize(torch.eye(5), *pair, "frontier").kept is True
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 3)).eval()
    assert immunize(network, *pair, "erase").kept is True


def test_export_refuses_a_ruined_model_unless_told(ruined, tmp_path):
    with pytest.raises(InputError, match="lost its primary task.*allow_broken"):
        export(*ruined, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert export(*ruined, tmp_path / "out", allow_broken=True)


def test_a_report_leads_with_the_loss(ruined):
    _, record = ruined
    assert lost_primary(record).startswith(
        "The model lost its primary task: primary accuracy −47.0"
    )
    assert headline(record).endswith("Do not release it.")
    assert "Do not release it." in model_card(record)
    old = copy.deepcopy(record.figures)
    del old["primary_score"]["kept"], old["primary_score"]["most_lost"]  # an earlier version's
    assert lost_primary(Record("immunize", "old", old, record.settings, record.data)) == ""


def test_a_report_says_that_some_was_lost(ruined):
    _, record = ruined
    record.figures["primary_score"] |= {**judged(80, 0.8, 0.79), "after": 0.79}
    record.figures["definition"]["score"] |= {"figure": -0.01, "holds": False}
    assert lost_primary(record) == ""
    assert "fell by more than the tolerance; it would be refused from a loss of" in lost_some(
        record
    )
    assert headline(record).endswith(lost_some(record))
    record.figures["definition"]["score"]["holds"] = True
    assert lost_some(record) == ""


def test_rows_that_were_scored_count(pair):
    small, large = make_task(80, seed=1), make_task(800, seed=1)
    bounds = [
        immunize(torch.eye(5), each, pair[1], "frontier").record.figures["primary_score"][
            "most_lost"
        ]
        for each in (small, large)
    ]
    assert bounds[0] > bounds[1] > 0.02


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_head_is_exact_in_no_precision_where_the_map_is_singular(pair, dtype):
    theta = torch.eye(5, dtype=dtype)
    assert immunize(theta, *pair, "erase", strength=0.0).exact is False
    assert immunize(theta, *pair, "erase", strength=0.1).exact is True
