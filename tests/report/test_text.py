import dataclasses
import json
import math

import pytest
import torch

from helpers import RESULTS
from helpers.tasks import make_task
from immunis import Record, audit
from immunis.core.shapes import CONTROL
from immunis.report.audit_tables import (
    audit_table,
    highest_table,
    points_table,
    primary_table,
    shares_table,
    worst_case_table,
)
from immunis.report.card import render
from immunis.report.format import points, share_cell
from immunis.report.limits import not_tested
from immunis.report.query import NO_HELP, WIDE, leading, reached
from immunis.report.text import closing, headline, kept, threat_model, verdict


def test_the_closing_lines_lead_with_the_highest_score_then_what_is_kept(audit_record):
    case = audit_record.figures["worst_case"]["frontier"]
    assert case["highest_attack"] != case["attack"]
    most = [reached(audit_record, name) for name in ("frontier", "original", CONTROL)]
    shown = [f"{score:.1%} by {attack}" for score, attack in most]
    assert verdict(audit_record, "frontier").startswith("frontier: the highest score of")
    lines = closing(audit_record).splitlines()
    assert lines[0].startswith(f"Highest score of any attack: original {shown[1]}, ")
    assert f"frontier {shown[0]}" in lines[0] and lines[0].endswith(f"untrained {shown[2]}.")
    assert all(WIDE in line for line in lines[1:])
    other = Record.load(RESULTS / "audit-mnist-digits.json")
    low, high = (other.figures["worst_case"]["probe"]["interval"][end] for end in ("low", "high"))
    assert f"95%: {low:.0%} to {high:.0%}" in closing(other)


def test_the_verdict_says_where_the_original_hardly_helps_anybody():
    record = Record.load(RESULTS / "audit-mnist-digits.json")
    said = verdict(record, "probe-deep")
    assert "keeps 0% of the original model's help; the original helps only 2 of these" in said
    other = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    assert "by a point" not in verdict(other, "condition")


def test_what_an_attack_breaks_is_listed(audit_record):
    lines = not_tested(audit_record)
    (line,) = (line for line in lines if "breaks erase" in line)
    rows = audit_record.figures["attacks"]["finetune_last"]
    scores = [f"{rows[name]['score']['mean']:.1%}" for name in ("erase", "original")]
    assert "finetune_last reaches {} ({})".format(*scores) in line
    assert "204%" not in line
    assert any("do not apply: batchnorm_only, renormalise" in line for line in lines)


@pytest.fixture(scope="module")
def small_record():
    """An audit of two defences, by an attack that defences anticipate and one that none does."""
    pair = make_task(80, seed=1, name="primary"), make_task(80, seed=2, name="harmful", shift=0.5)
    theta, few = torch.eye(5), {"seeds": 2, "budget": 5}
    blind = torch.diag(torch.tensor([1.0, 1.0, 1e-6, 1e-6, 1e-6]))
    scales = (1, 2, 3)  # three trainings that differ
    models = {"original": theta, "blind": [k * blind for k in scales]}
    models["plain"] = [k * theta for k in scales]
    names = ["ridge", "float64"]
    return audit(models, *pair, attacks=names, effort=few, plain="plain", tolerance=0.1).record


def test_the_verdict_leads_with_points_and_their_interval(small_record):
    figures = small_record.figures
    case = figures["worst_case"]["blind"]
    said = verdict(small_record, "blind")
    gain = points(case["gain_interval"], "classification").replace("(", "(95%: ")
    assert f"({case['attack']}, {case['accuracy']:.1%}) gains {gain} points over" in said
    alone = points(case["unseen"]["gain_interval"], "classification").replace("(", "(95%: ")
    assert "over the 1 attack alone that no defence trains or stops against, the best" in said
    assert f"(float64, {case['unseen']['accuracy']:.1%}) gains {alone} points" in said
    assert said.index("gains") < said.index("share" if "share" in said else "keeps")
    assert "no claim" not in said  # six runs
    few = "no claim (fewer than 5 different runs)"
    assert verdict(small_record, "original").endswith(f"; {few}.")
    assert f"original: {few}." in not_tested(small_record)


def test_the_training_without_a_defence_is_no_defence(small_record):
    assert leading(small_record) == "blind" and "defences" not in headline(small_record)
    figures = json.loads(json.dumps(small_record.figures))
    for rows in figures["attacks"].values():
        rows["plain"]["score"]["mean"] = 0.0  # it reads least
    assert leading(dataclasses.replace(small_record, figures=figures)) == "blind"
    two = {**figures, "models": {**figures["models"], "other": figures["models"]["blind"]}}
    two["worst_case"] = {**figures["worst_case"], "other": figures["worst_case"]["blind"]}
    said = headline(dataclasses.replace(small_record, figures=two))
    assert "the best of 2 defences" in said


def test_who_attacked_is_said_with_rows_and_controls(small_record):
    said = threat_model(small_record)
    rows = small_record.figures["factors"]["attackers"]["rows"]
    assert f"runs with 2 seeds, each with its own {rows} of them, on every training of" in said
    assert "and on 4 untrained copies" in said


def test_a_primary_score_says_what_it_loses_at_most_against_original_and_plain(small_record):
    changes = small_record.figures["models"]["blind"]["primary_change"]
    said = kept(small_record, "blind")
    for other, start in (("original", ""), ("plain", "against plain it ")):
        low = 100 * changes[other]["low"]
        assert f"{start}loses at most {max(-low, 0):.1f} points (95%: " in said
    assert "too few test rows to tell if that is more than 10" in said
    few = "too few test rows to tell if that is more than 10"
    assert kept(small_record, "plain").startswith("loses at most ")
    assert few in kept(small_record, "plain") and "±0.0 to" not in kept(small_record, "plain")
    cells = {row[0]: row[2:] for row in primary_table(small_record).rows}
    assert cells["plain"][1] == "too few rows" and cells["original"][:2] == ["–", "–"]


def test_tables_show_no_share_where_none_is_defined_and_no_infinite_interval(small_record):
    old = Record.load(RESULTS / "audit-digit-parity.json")
    nothing = json.loads(json.dumps(small_record.figures))
    for case in nothing["worst_case"].values():
        case |= {"residual_advantage": None, "share_attack": None, "interval": None}
    for rows in nothing["attacks"].values():
        for row in rows.values():
            none = {"mean": None, "low": None, "high": None, "reason": "original does not help"}
            row["residual_advantage"] = none
    bare = dataclasses.replace(small_record, figures=nothing).checked()
    assert {row[3] for row in worst_case_table(bare).rows} == {"–¹"}
    assert {cell for row in shares_table(bare).rows for cell in row[1:]} == {"–¹"}
    assert NO_HELP in verdict(bare, "blind")
    for table in (worst_case_table, shares_table):
        assert table(bare).notes == (f"¹ not enough evidence: {NO_HELP}.",)
    for record in (old, small_record, bare):
        made = (worst_case_table, shares_table, points_table, primary_table)
        text = (
            " ".join(table(record).markdown() for table in made) + render(record).split("<h1>")[1]
        )
        assert "to ∞" not in text and "0–∞" not in text and " inf" not in text
    assert len(worst_case_table(small_record).rows) == 2 * 3  # and over unseen attacks
    names = [row[0] for row in highest_table(small_record).rows]
    assert names == ["original", "blind", "plain", CONTROL]


def test_what_attacks_note_of_their_runs_reaches_every_reader(small_record):
    figures = json.loads(json.dumps(small_record.figures))
    rows, told = figures["attacks"]["ridge"], "rate 1 is at the edge of those tried"
    scratch = {"from scratch": figures["controls"]}
    for row in (row for of in (figures["attacks"] | scratch).values() for row in of.values()):
        if isinstance(row, dict):
            row["notes"] = []
    plain = dataclasses.replace(small_record, figures=json.loads(json.dumps(figures)))
    assert "†" not in audit_table(plain).markdown() + " ".join(not_tested(plain))
    rows["blind"]["notes"], rows["original"]["notes"] = [told, "x"], [told]
    record = dataclasses.replace(small_record, figures=figures).checked()
    edge = "the best value is at the edge of those tried"
    line = f"{edge}: ridge on original (rate 1), blind (rate 1)."
    assert points_table(plain).columns == ["attack", "untrained %", "original", "blind", "plain"]
    assert points_table(plain).rows[0][1] == audit_table(plain).rows[0][-1]
    scores, gains = audit_table(record), points_table(record)
    for table in (scores, gains):
        cells = dict(zip(table.columns, table.rows[0], strict=True))
        marked = [name for name, cell in cells.items() if cell.endswith("†")]
        assert marked == ["original", "blind"]
        assert table.notes == (f"† {line}", "† x: ridge on blind.")
        assert table.markdown().endswith("|\n\n† " + line + "\n\n† x: ridge on blind.")
    assert f"† Noted of attacks: {line}" in not_tested(record)
    page = render(record)
    assert f"† Noted of attacks: {line}" in page and f"{told}; x" in page
    assert f"† {line}" in " ".join(str(record).split()) and f"† {line}" in record._repr_html_()


def test_shares_and_points_are_read_with_their_signs():
    assert share_cell({"mean": -0.2, "low": -0.4, "high": 0.1}) == "−0.2 (−0.4 to 0.1)"
    assert share_cell({"mean": 2.97, "low": 0.0, "high": math.inf}) == "–²"
    assert share_cell({"mean": 0.4, "low": math.nan, "high": math.nan}) == "–²"
    assert points({"mean": 0.1, "low": math.nan, "high": math.nan}, "regression") == "+0.100"
    assert points({"mean": math.nan}, "classification") == points(None, "regression") == "–"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "own (disjoint from the defender's)"),
        ({"nearest": None, "shared": 0}, "own (disjoint from the defender's)"),
        ({"nearest": {"suspicious": False}}, "own (disjoint from the defender's)"),
        ({"nearest": {"suspicious": True}}, "own (not shown to be disjoint from the defender's)"),
        ({"shared": 3}, "own (not shown to be disjoint from the defender's)"),
        ({"checked": False, "shared": 3}, "own (not checked to be disjoint from the defender's)"),
    ],
)
def test_disjoint_is_said_of_what_was_shown_to_be(audit_record, facts, said):
    figures = {**audit_record.figures, "disjoint": {"checked": True, **facts}}
    assert said in threat_model(dataclasses.replace(audit_record, figures=figures))
