"""What several audits say of one model, and the badge that follows."""

import copy
import dataclasses
import math

import pytest
import torch

from helpers import RESULTS
from immunis import Record, SettingsError, audit, immunize
from immunis.report.about import About
from immunis.report.attacker_means import MEANS, means_of
from immunis.report.card import render
from immunis.report.evidence import Evidence
from immunis.report.heat import by_layer, by_model
from immunis.report.query import leading
from immunis.report.review import review
from immunis.report.runs import subjects, weights_of
from immunis.report.tiles import audit_tiles

MODELS = ("original", "erase", "untrained")
ONE_EACH = {  # an attack of each means
    "ridge": (0.9, 0.5, 0.5),
    "earlier_layer": (0.9, 0.5, 0.5),
    "finetune_all": (0.9, 0.5, 0.5),
    "float64": (0.9, 0.5, 0.5),
}


@pytest.fixture
def made(audit_record):
    """Make an audit of one defence by a few attacks, whose scores are given by model."""

    def make(scores, spread=0.01, **settings):
        figures = copy.deepcopy(audit_record.figures)
        figures["models"] = {name: figures["models"][name] for name in MODELS[:2]}
        change = {"mean": 0.0, "low": -0.004, "high": 0.004, "finest": 0.004, "tolerance": 0.005}
        figures["models"]["erase"]["primary_change"] = {"original": {**change, "holds": True}}
        model = copy.deepcopy(figures["attacks"]["ridge"]["erase"])
        figures["attacks"] = {}
        for attack, of in scores.items():
            rows = figures["attacks"][attack] = {}
            for name, mean in zip(MODELS, of, strict=True):
                rows[name] = {"status": "not applicable", "reason": "none"}
                if mean is not None:
                    score = {"mean": mean, "low": mean - spread, "high": mean + spread}
                    curve = [{"steps": 1, "flops": 1e6, "mean": mean, "low": mean, "high": mean}]
                    rows[name] = {**model, "score": score, "curve": curve, "notes": []}
        record = dataclasses.replace(audit_record, figures=figures)
        return record.with_settings(attacks=list(scores), **settings)

    return make


def judged(record, **about):
    evidence = Evidence((record,), About(**about))
    return evidence.judgement.badge, [each.state for each in evidence.means]


def said(record, **about):
    return Evidence((record,), About(**about)).judgement.reason


def test_it_holds_where_every_means_holds_by_its_whole_interval(made):
    assert judged(made(ONE_EACH)) == ("Holds", ["holds"] * 4)
    wide = made({**ONE_EACH, "ridge": (0.9, 0.535, 0.5)})  # the threshold is 0.54
    assert judged(wide) == ("Partly", ["unsure"] * 4)
    open_layers = made({**ONE_EACH, "ridge": (0.9, 0.535, 0.5), "earlier_layer": (0.9, 0.8, 0.5)})
    assert judged(open_layers) == ("Fails", ["unsure", "fails", "fails", "fails"])


def test_a_threshold_that_an_untrained_copy_passes_is_said_to_be_one(made):
    record = made({**ONE_EACH, "finetune_all": (0.95, 0.9, 0.93)}, threshold=0.6)
    assert judged(record) == ("Partly", ["holds", "holds", "fails", "fails"])
    told = "An untrained copy passes it too (93.0%), which no defence of weights prevents."
    assert told in said(record) and told not in said(made(ONE_EACH))


def test_an_attacker_of_more_means_has_the_lesser_ones(made):
    weak = made({**ONE_EACH, "earlier_layer": (0.9, 0.8, 0.5)})
    evidence = Evidence((weak,))
    assert judged(weak) == ("Partly", ["holds", "fails", "fails", "fails"])
    assert [each.lesser for each in evidence.means] == [False, False, True, True]
    assert evidence.judgement.reason == (
        "The best attack (earlier_layer) is 26.0 points above the threshold of 54.0%. "
        "It does not stop an attacker who tunes a probe of any layer, or has more means. "
        "It stops an attacker who reads outputs and features."
    )
    worst = made({**ONE_EACH, "ridge": (0.9, 0.8, 0.5)})
    assert judged(worst) == ("Fails", ["fails"] * 4)


def test_what_was_not_tried_does_not_hold(made):
    untried = {**ONE_EACH, "finetune_all": (None, None, None)}
    states = ["holds", "holds", "untested", "untested"]
    assert judged(made(untried)) == ("Partly", states)
    assert "Nothing is known of an attacker who fine-tunes cheaply. It stops" in said(made(untried))
    weak = {**untried, "ridge": (None, None, None), "float64": (0.9, 0.8, 0.5)}
    told = "Nothing is known of an attacker who reads outputs and features, or fine-tunes cheaply."
    assert said(made(weak)).endswith(f"knows the defence. {told}")
    assert "means" not in said(made({**weak, "earlier_layer": (None, None, None)}))
    assert judged(made({})) == ("No verdict", ["unknown"] * 4)


def test_a_lost_primary_score_does_not_hold(made):
    record = made(ONE_EACH)
    change = record.figures["models"]["erase"]["primary_change"]["original"]
    change |= {"mean": -0.02, "low": -0.03, "high": -0.01}
    assert judged(record)[0] == "Partly"
    assert "loses more primary score than allowed" in said(record)
    assert judged(record, tolerance=0.05)[0] == "Holds"
    change = {"mean": 0.001, "low": -0.008, "high": 0.012, "tolerance": 0.005, "holds": False}
    record.figures["models"]["erase"]["primary_change"] = {"original": change}
    assert said(record).endswith(
        "It may lose more primary score than allowed: +0.1 (95%: −0.8 to +1.2) points, and 0.5 "
        "points may be lost. There are too few rows to tell."
    )
    change["high"] = -0.006
    assert said(record).endswith("It loses more primary score than allowed.")
    record.figures["models"]["erase"]["broken"] = True
    assert judged(record)[0] == "Fails"


def test_a_model_that_immunize_would_refuse_fails_and_does_not_lead(made, audit_record):
    record = made(ONE_EACH)
    rows = record.figures["models"]
    rows["erase"] |= {"primary": rows["original"]["primary"] - 0.1, "most_lost": 0.08}
    assert judged(record)[0] == "Fails"
    assert "lost its primary task" in Evidence((record,)).judgement.reason
    assert "it may lose 8.0 points" in Evidence((record,)).judgement.reason
    rows["erase"]["most_lost"] = 0.12
    rows["erase"]["primary_change"]["original"] |= {"mean": -0.1, "low": -0.13, "high": -0.07}
    assert judged(record)[0] == "Partly"
    assert leading(audit_record) == "erase"
    models = copy.deepcopy(audit_record.figures["models"])
    models["erase"] |= {"primary": 0.33, "most_lost": 0.02}
    ruined = dataclasses.replace(audit_record, figures={**audit_record.figures, "models": models})
    assert leading(ruined) != "erase"


def test_a_primary_score_that_nobody_can_tell_does_not_hold(made):
    record = made(ONE_EACH)
    model = record.figures["models"]["erase"]
    model["primary_change"]["original"] |= {"low": -0.014, "high": 0.014, "finest": 0.014}
    assert judged(record)[0] == "Partly"
    assert "Too few primary test rows to tell" in Evidence((record,)).judgement.reason
    assert judged(record, tolerance=0.02)[0] == "Holds"
    del model["primary_change"]  # in records of version 0.1
    assert judged(record)[0] == "Partly"
    assert "No interval of its primary score" in Evidence((record,)).judgement.reason
    model["primary"] -= 0.2
    assert "loses more primary score than allowed" in Evidence((record,)).judgement.reason
    model["primary"] = None
    assert "was not measured" in Evidence((record,)).judgement.reason


def test_the_owner_may_set_the_threshold(made):
    record = made({**ONE_EACH, "ridge": (0.9, 0.6, 0.5)})
    assert judged(record)[0] == "Fails"
    assert judged(record, threshold=0.7)[0] == "Holds"
    answers = dict(review(About(threshold=0.7), record, Evidence((record,), About(threshold=0.7))))
    assert answers["Threshold"] == "70.0%, stated after the audit"


def test_a_threshold_that_the_audit_was_given_was_stated_before_it(made):
    record = made({**ONE_EACH, "ridge": (0.9, 0.6, 0.5)}, threshold=0.7)
    assert judged(record)[0] == "Holds"
    for about, origin, fixed in (
        (About(), "stated before the audit", "yes: "),
        (About(threshold=0.7), "stated before the audit", "yes: "),
        (About(threshold=0.8), "stated after the audit", "no: "),
    ):
        evidence = Evidence((record,), about)
        answers = dict(review(about, record, evidence))
        assert answers["Threshold"].endswith(origin) and origin in render(record, about=about)
        assert answers["Threshold fixed in advance"].startswith(fixed)
    other = record.with_settings(threshold=None)
    assert Evidence((record, other)).origin == "stated after the audit"  # after one of them
    assert "stated" not in Evidence((other,)).origin


def test_there_is_no_verdict_where_the_undefended_model_passes_too(made):
    evidence = Evidence((made(ONE_EACH),), About(threshold=0.9))
    assert evidence.judgement.badge == "No verdict"
    assert {each.state for each in evidence.means} == {"unknown"}
    told = "The undefended model passes too: its best attacker reaches 90.0%, and the threshold is"
    assert evidence.judgement.reason.startswith(told)
    assert judged(made(ONE_EACH), threshold=0.89)[0] == "Holds"


def test_the_lead_says_how_far_the_best_attack_is_from_the_threshold(made):
    record = made({**ONE_EACH, "ridge": (0.9, 0.6, 0.5)}, threshold=0.7)
    told = "The best attack (ridge) is 10.0 points below the threshold of 70.0%. It stops"
    assert said(record).startswith(told)
    late = "is at the threshold of 60.0%, stated after the audit."
    assert late in said(record, threshold=0.6)


def test_a_threshold_that_no_score_has_is_refused(made):
    for threshold in (70.0, -0.1):
        with pytest.raises(SettingsError, match=f"threshold={threshold}: expected"):
            Evidence((made(ONE_EACH),), About(threshold=threshold))


def test_there_is_no_verdict_where_the_original_helps_nobody_for_certain(made):
    helpless = dict.fromkeys(ONE_EACH, (0.52, 0.5, 0.5))
    assert judged(made(helpless, spread=0.02))[0] == "No verdict"
    assert judged(made(helpless, spread=0.001))[0] == "Holds"
    evidence = Evidence((made(helpless, spread=0.02),))
    assert math.isnan(evidence.limit)
    assert "no threshold" in evidence.judgement.reason


def test_long_fine_tuning_is_not_cheap_and_families_come_from_the_record(made):
    record = made(ONE_EACH)
    assert [means_of(record, attack) for attack in ONE_EACH] == list(MEANS)
    long = record.with_settings(budget=5000)
    assert means_of(long, "finetune_all") == "adaptive"
    own = record.with_settings(families={"ridge": "surgery"})
    assert means_of(own, "ridge") == "surgery"


def test_tiles_hold_the_highest_scores_and_say_where_the_budget_ended(made):
    record = made({**ONE_EACH, "ridge": (0.9, 0.51, 0.5)})
    _, highest, price, attacks = audit_tiles(Evidence((record,)))
    scores = [("90.0%", "original"), ("51.0%", "defended"), ("50.0%", "untrained")]
    assert highest.figures == scores and highest.note == "ridge; 95%: 50.0% to 52.0%"
    assert price.figures == [("not reached", "")]
    assert attacks.figures == [("4 of 4", "")]
    even = audit_tiles(Evidence((made({**ONE_EACH, "ridge": (0.9, 0.9, 0.5)}),)))[2]
    assert even.figures == [("× 1", "")]


def test_audits_of_the_same_models_are_one_subject_and_others_are_not():
    names = ("cars-resnet18-held", "flowers-resnet18-held", "cars-resnet18-tuning")
    records = [Record.load(RESULTS / f"audit-tiny-imagenet-{name}.json") for name in names]
    assert subjects(records) == [[records[0], records[2]], [records[1]]]
    evidence = Evidence((records[0], records[2]))
    best = evidence.reached("probe-held")
    assert best.attack == "reinit_last" and best.score == pytest.approx(0.192, abs=1e-3)
    assert evidence.counts["done"] == 17


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_an_audit_speaks_for_the_weights_that_it_attacked_alone(pair):
    released, other = (immunize(torch.eye(5), *pair, "erase", strength=s) for s in (0.5, 0.1))
    models = {"original": torch.eye(5), "erase": other}
    found = audit(models, *pair, attacks=["ridge"], effort={"seeds": 1, "budget": 2}).record
    assert other.record.figures["weights"] in weights_of(found)
    assert subjects([other.record, found]) == [[found, other.record]]
    assert subjects([released.record, found]) == [[found], [released.record]]
    del released.record.figures["weights"]  # as in records of version 0.1
    assert subjects([released.record, found]) == [[found, released.record]]


def test_heat_maps_show_every_attack_and_layers_where_they_are_recorded(made):
    record = made(ONE_EACH)
    cells = by_model(Evidence((record,))).groups
    assert list(cells) == list(MEANS.values())
    row = cells["Reads outputs and features"]["ridge"]  # untrained, original, erase
    assert [(cell.text, cell.small) for cell in row] == [("50.0", ""), ("+40.0", ""), ("±0.0", "")]
    assert row[1].shade == 10 and row[1].title == "ridge on original: 90.0%"
    gain = {"mean": 0.4, "low": 0.35, "high": 0.45}
    record.figures["attacks"]["ridge"]["original"]["above_untrained"] = gain
    row = by_model(Evidence((record,))).groups["Reads outputs and features"]["ridge"]
    assert (row[1].text, row[1].small) == ("+40.0", "+35.0 to +45.0")
    assert by_layer(Evidence((record,))) is None
    record.figures["attacks"]["earlier_layer"]["erase"]["layers"] = {"stem": 0.5, "top": 0.7}
    found = by_layer(Evidence((record,)))
    assert found.columns == ["layer stem", "layer top"]
    assert [cell.text for cell in found.groups["earlier_layer"]["erase"]] == ["50.0", "70.0"]
