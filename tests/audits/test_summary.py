"""Points, shares and worst cases by hand."""

import math

import numpy as np
import pytest

from helpers.audits import done
from immunis.audits.statistics.bootstrap import Design
from immunis.audits.statistics.predictors import predictors
from immunis.audits.statistics.summary import NO_HELP, non_inferiority, summarise, worst_case
from immunis.theory.score_interval import finest

ROWS = 1000


def right(share):
    """Answers of which a share is right, the same rows in every run."""
    return np.arange(ROWS) < round(share * ROWS)


def judged(scores, seeds=3, original="o", chance=0.1):
    """The table and estimates of attacks, from one score (or one each seed) by attack and model."""
    results = {
        attack: {
            model: [done(right(s)) for s in (of if isinstance(of, tuple) else (of,) * seeds)]
            for model, of in models.items()
        }
        for attack, models in scores.items()
    }
    design = Design({model: [0] for models in scores.values() for model in models}, seeds)
    return summarise(results, design, ROWS, original, "untrained", chance)


def test_points_and_shares_by_hand():
    table, _ = judged({"x": {"o": 0.9, "d": 0.5, "untrained": 0.1}})
    row = table["x"]["d"]
    assert row["score"]["mean"] == pytest.approx(0.5)
    assert row["above_untrained"]["mean"] == pytest.approx(0.4)
    assert row["above_original"]["mean"] == pytest.approx(-0.4)
    assert row["residual_advantage"]["mean"] == pytest.approx(0.5)
    reach = 1.96 * math.sqrt(0.4 * 0.6 / ROWS)  # 400 rows differ, all in one direction
    assert row["above_untrained"]["low"] == pytest.approx(0.4 - reach, abs=0.005)
    assert row["above_untrained"]["high"] == pytest.approx(0.4 + reach, abs=0.005)
    assert "above_original" not in table["x"]["o"]
    assert "residual_advantage" not in table["x"]["untrained"]


def test_the_score_at_each_layer_is_the_mean_of_runs_that_all_tried_it():
    runs = [done(right(0.5)) for _ in range(2)]
    runs[0]["layers"], runs[1]["layers"] = {"a": 0.2, "b": 0.4}, {"a": 0.4, "b": 0.8, "c": 1.0}
    bare = {m: [done(right(0.5))] * 2 for m in ("o", "untrained")}
    design = Design({m: [0] for m in ("o", "d", "untrained")}, 2)
    table, _ = summarise({"x": {"d": runs, **bare}}, design, ROWS, "o", "untrained", 0.1)
    assert table["x"]["d"]["layers"] == pytest.approx({"a": 0.3, "b": 0.6})
    assert "layers" not in table["x"]["o"]


def test_a_share_below_zero_is_not_clipped():
    table, scores = judged({"x": {"o": 0.9, "d": 0.02, "untrained": 0.1}})
    share = table["x"]["d"]["residual_advantage"]
    assert share["mean"] == pytest.approx(-0.1) and share["low"] < share["mean"] < share["high"]
    assert worst_case(table, scores, "d", "o", "untrained")["residual_advantage"] < 0


def test_no_share_is_given_of_help_within_three_standard_errors():
    def share(original, untrained=0.5):
        table, scores = judged({"x": {"o": original, "d": 0.7, "untrained": untrained}}, 1)
        case = worst_case(table, scores, "d", "o", "untrained")
        return table["x"]["d"]["residual_advantage"], case

    # the difference of 8 rows of 1000 has a standard error of 2.8 rows: not three times
    found, case = share(0.508)
    assert found == {"mean": None, "low": None, "high": None, "reason": NO_HELP}
    assert case["residual_advantage"] is None and case["share_attack"] is None
    assert case["interval"] is None and case["undefined"] == 1
    assert case["gain"] == pytest.approx(0.2) and case["attack"] == "x"
    assert share(0.52)[0]["mean"] == pytest.approx(10)
    assert share(0.4)[0]["mean"] is None


def test_the_worst_case_leads_with_the_largest_gain_in_points():
    table, scores = judged(
        {
            "points": {"o": 0.9, "d": 0.45, "untrained": 0.2},
            "share": {"o": 0.7, "d": 0.7, "untrained": 0.6},
            "high": {"o": 0.95, "d": 0.9, "untrained": 0.85},
        }
    )
    table["broke"] = {"d": {"status": "failed", "reason": ""}}
    case = worst_case(table, scores, "d", "o", "untrained")
    assert (case["attack"], case["gain"]) == ("points", pytest.approx(0.25))
    assert (case["share_attack"], case["residual_advantage"]) == ("share", pytest.approx(1))
    assert (case["highest_attack"], case["highest_accuracy"]) == ("high", pytest.approx(0.9))
    assert case["to_original"]["mean"] == pytest.approx(-0.05)
    assert case["overall"] == pytest.approx(0.5)
    assert (case["attacks"], case["undefined"], case["failed"]) == (3, 0, 1)


def test_the_worst_case_is_also_over_attacks_that_no_defence_knows():
    table, scores = judged(
        {
            "known": {"o": 0.9, "d": 0.8, "untrained": 0.2},
            "unknown": {"o": 0.9, "d": 0.3, "untrained": 0.2},
        }
    )
    case = worst_case(table, scores, "d", "o", "untrained", known=["known"])
    assert (case["attack"], case["attacks"]) == ("known", 2)
    assert (case["unseen"]["attack"], case["unseen"]["attacks"]) == ("unknown", 1)
    assert case["unseen"]["gain"] == pytest.approx(0.1)
    nothing = worst_case(table, scores, "d", "o", "untrained", known=["known", "unknown"])
    assert nothing["unseen"]["attack"] is None and nothing["unseen"]["attacks"] == 0


def test_the_interval_of_the_worst_gain_includes_its_selection():
    """The luckiest of eight attacks that gain as much: its own interval seldom holds the truth."""
    design, inside = Design({m: [0] for m in ("o", "d", "untrained")}, 3), np.zeros(2)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        results = {
            f"a{i}": {
                m: [done(rng.random(200) < s) for _ in range(3)]
                for m, s in {"o": 0.8, "d": 0.5, "untrained": 0.4}.items()
            }
            for i in range(8)
        }
        table, scores = summarise(results, design, 200, "o", "untrained", 0.1)
        case = worst_case(table, scores, "d", "o", "untrained")
        alone = table[case["attack"]]["d"]["above_untrained"]
        chosen = case["gain_interval"]
        assert chosen["mean"] == alone["mean"] > 0.1
        inside += [found["low"] < 0.1 < found["high"] for found in (alone, chosen)]
    assert inside[1] >= 18 and inside[0] < inside[1]


def test_seeds_that_differ_widen_the_interval_by_student_s_t():
    table, _ = judged({"x": {"o": 0.9, "d": (0.3, 0.5, 0.7), "untrained": 0.1}})
    found = table["x"]["d"]["above_untrained"]
    reach = 4.30265 * 0.2 / math.sqrt(3)  # two degrees of freedom
    assert found["high"] - found["mean"] == pytest.approx(reach, rel=0.25)


def test_a_run_without_answers_counts_by_its_score_alone():
    results = {"x": {m: [done(None, s)] * 2 for m, s in (("o", 0.9), ("d", 0.5))}}
    design = Design({"o": [0], "d": [0]}, 2)
    table, _ = summarise(results, design, 50, "o", "untrained", 0.1)
    row = table["x"]["d"]
    assert row["above_original"]["mean"] == pytest.approx(-0.4)
    assert row["hits"] == [None, None] and "residual_advantage" not in row


def test_scores_that_diverged_have_points_without_an_interval():
    results = {"x": {m: [done(None, s)] for m, s in (("o", 0.9), ("d", -math.inf))}}
    table, scores = summarise(results, Design({"o": [0], "d": [0]}, 1), 50, "o", "untrained", 0.0)
    assert table["x"]["d"]["score"]["mean"] == -math.inf
    assert math.isnan(table["x"]["d"]["above_original"]["low"])
    assert worst_case(table, scores, "d", "o", "untrained")["attack"] == "x"


def test_an_attack_that_failed_on_the_original_has_no_comparison():
    results = {"x": {"o": [{"status": "failed", "reason": "x"}], "d": [done(right(1.0))]}}
    design = Design({"o": [0], "d": [0]}, 1)
    table, scores = summarise(results, design, ROWS, "o", "untrained", 0.1)
    assert table["x"]["o"]["status"] == "failed"
    assert not {"cost", "above_original"} & table["x"]["d"].keys()
    assert worst_case({}, {}, "d", "o", "untrained")["attack"] is None


def test_a_score_at_chance_is_noted():
    table, _ = judged({"x": {"o": 0.1}}, chance=0.2)
    assert "does not beat chance" in table["x"]["o"]["notes"][0]


def test_a_primary_score_is_kept_if_its_whole_interval_is_within_the_tolerance():
    hits = {
        "o": np.stack([right(0.9)] * 2),
        "same": np.stack([right(0.9)] * 2),
        "less": np.stack([right(0.88)] * 2),
        "near": np.stack([right(0.899)] * 2),
    }
    design = Design({name: [0, 0] for name in hits}, 3)
    found = non_inferiority(hits, design, ["o", "same"], 0.005)
    exact = finest(ROWS)  # 3.8 of 1000 rows, though none differs
    assert found["same"]["o"] == pytest.approx({
        "mean": 0, "low": -exact, "high": exact, "finest": exact, "tolerance": 0.005, "holds": True,
    })  # fmt: skip
    assert set(found["o"]) == {"same"} and set(found["less"]) == {"o", "same"}
    assert found["less"]["o"]["holds"] is False
    assert found["less"]["o"]["mean"] == pytest.approx(-0.02)
    near = found["near"]["o"]  # one row of 1000: as many as 5.6 may be lost
    assert near["low"] == pytest.approx(-0.0056, abs=1e-4) and near["holds"] is False


@pytest.mark.parametrize("rows", [8, 12, 268, 764])
def test_two_models_that_answer_alike_on_few_rows_are_not_shown_to_be_alike(rows):
    same = np.ones((1, rows), dtype=bool)
    design = Design({"o": [0], "d": [0]}, 1)
    found = non_inferiority({"o": same, "d": same}, design, ["o"], 0.005)["d"]["o"]
    assert found["holds"] is None and found["low"] == pytest.approx(-finest(rows))
    worse = same & (np.arange(rows) >= rows / 2)
    found = non_inferiority({"o": same, "d": worse}, design, ["o"], 0.005)["d"]["o"]
    assert found["holds"] is False  # half of them lost is loss enough
    assert non_inferiority({"o": worse, "d": same}, design, ["o"], 0.005)["d"]["o"]["holds"]


def test_a_loss_above_the_tolerance_is_hardly_ever_called_kept():
    """A true loss of one point, or of the tolerance itself: at most 2.5% may be called kept."""
    design = Design({"o": [0], "d": [0]}, 1)
    for rows, tolerance, loss in (
        (20, 0.005, 0.01), (50, 0.005, 0.01), (100, 0.005, 0.01), (268, 0.005, 0.01),
        (1000, 0.005, 0.01), (100, 0.1, 0.1),
    ):  # fmt: skip
        wrong, runs = 0, 100
        for seed in range(runs):
            rng = np.random.default_rng(seed)
            before, chance = rng.random(rows) < 0.9, rng.random(rows)
            gain = 0.01  # a share of rows goes each way besides
            after = np.where(before, chance >= (loss + gain) / 0.9, chance < gain / 0.1)
            hits = {"o": before[None], "d": after[None]}
            wrong += non_inferiority(hits, design, ["o"], tolerance)["d"]["o"]["holds"] is True
        assert wrong <= 0.025 * runs + 2 * math.sqrt(0.025 * runs), (rows, wrong)


def test_runs_that_are_all_right_still_have_an_interval():
    table, scores = judged({"x": {"o": 1.0, "d": 1.0, "untrained": 0.0}}, seeds=5)
    row, least = table["x"]["d"], finest(ROWS)
    assert row["score"]["low"] == pytest.approx(1 - least) and row["score"]["high"] == 1
    assert table["x"]["untrained"]["score"]["high"] == pytest.approx(least)
    assert row["above_original"]["low"] == pytest.approx(-least)
    assert row["above_untrained"]["low"] < 1 - least / 2
    gain = worst_case(table, scores, "d", "o", "untrained")["gain_interval"]
    assert gain["low"] == row["above_untrained"]["low"]


def test_cheap_figures_are_ranked_over_eight_models_or_not_at_all():
    names = [f"m{i}" for i in range(8)]
    models = {m: {"kappa_harmful": i, "rir": None, "rho": -i} for i, m in enumerate(names)}
    row = {"status": "done", "multiplier": {"steps": 2.0}}
    attacks = {"x": {m: {**row, "score": {"mean": -i}} for i, m in enumerate(names)}}
    found = predictors(attacks, models, names)
    assert found["kappa_harmful"]["score"] == -1 and found["rho"]["score"] == 1
    assert math.isnan(found["kappa_harmful"]["cost"])  # all cost the same
    assert found["rir"]["pairs"] == 0
    assert predictors(attacks, models, names[:7]) is None
