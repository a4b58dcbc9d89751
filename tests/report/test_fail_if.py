import copy
import math

import pytest
import torch

from helpers import ROOT
from immunis import SettingsError, immunize
from immunis.core.shapes import CONTROL
from immunis.report.fail_if import AUDIT, IMMUNIZE, condition, failure
from immunis.report.query import leading, reached


def failed(record, text):
    return failure(record, condition(text, record.kind))


@pytest.fixture
def told(audit_record):
    """The same audit with a share that can be told."""
    figures = copy.deepcopy(audit_record.figures)
    for case in figures["worst_case"].values():
        case |= {"residual_advantage": 0.4, "interval": {"mean": 0.4, "low": 0.2, "high": 0.6}}
    return type(audit_record)(**{**vars(audit_record), "figures": figures})


def test_a_condition_holds_or_not_by_the_named_figure(told):
    assert failed(told, "kept>0.5") == ""
    line = failed(told, "kept>0.1")
    assert line == f"--fail-if kept>0.1: kept of {leading(told)} is 0.4."
    assert failed(told, "kept[original] >= 0.4").endswith("kept of original is 0.4.")
    assert failed(told, "failed>0") == "" and failed(told, "failed<=0")


def test_and_binds_tighter_than_or(told):
    yes, no = "kept>0.1", "kept>0.9"
    for text, fails in (
        (f"{yes} and {no}", False),
        (f"{no} and {no} or {yes}", True),
        (f"{yes} or {no} and {no}", True),
        (f"{no} or {yes} and {no}", False),
    ):
        assert bool(failed(told, text)) is fails, text


def test_scores_are_those_of_the_strongest_attack_in_percent(told):
    for name, model in (("highest", "erase"), ("original", "original"), ("untrained", CONTROL)):
        score, of = 100 * reached(told, model).score, f"{name}[erase]"
        assert failed(told, f"{of}>{score - 0.01}") and not failed(told, f"{of}>{score + 0.01}")


def test_a_figure_that_cannot_be_told_fails_with_the_reason(audit_record):
    for text in ("kept[erase]>99", "kept[erase]<-99", "failed>9 and kept[erase]>99"):
        assert failed(audit_record, text).endswith(
            "kept is not defined: the interval is wider than all of the original's help."
        )


def test_a_broken_model_passes_no_condition_on_attacks(told):
    told.figures["models"]["erase"]["broken"] = True
    for name in ("highest", "gain", "kept", "cost"):
        assert "lost its primary task" in failed(told, f"{name}[erase]>1e9")


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_a_defence_is_held_to_its_primary_score_and_rho(pair):
    record = immunize(torch.eye(5), *pair, "erase").record
    score, rho = record.figures["primary_score"], record.figures["rho"]["after"]
    assert abs(score["after"] - score["before"]) < 1e-6
    assert failed(record, "primary<-0.5") == ""
    assert failed(record, f"rho>{rho / 2}") and not failed(record, f"rho>{2 * rho}")
    score["after"] = score["before"] - 0.01
    assert failed(record, "primary<-0.5") == "--fail-if primary<-0.5: primary is -1."
    score["after"] = None
    assert "primary is not defined: the primary score was not measured" in failed(
        record, "primary<-0.5"
    )


@pytest.mark.parametrize("kind", ["audit", "immunize"])
def test_every_name_is_a_figure_of_a_record(kind, audit_record, pair):
    record, names = audit_record, AUDIT
    if kind == "immunize":
        record, names = immunize(torch.eye(5), *pair, "erase").record, IMMUNIZE
    for name in names:
        told = failed(record, f"{name}<1e300")
        assert name in told and "unknown" not in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kepd>0.1", "did you mean 'kept'.*Known: .*gain.*highest"),
        ("kept", "is no comparison; expected NAME<NUMBER"),
        ("kept>nan", "is no comparison"),
        ("kept>0.1 xor cost<2", "is no comparison"),
        ("__import__('os').system('x')>0", "is no comparison"),
        ("", "is no comparison"),
        ("kept[nobody]>1", "unknown model"),
    ],
)
def test_what_is_no_condition_is_refused_before_anything_runs(text, says):
    with pytest.raises(SettingsError, match=says):
        condition(text, "audit", ["original", "erase"])


def test_an_infinite_cost_is_a_figure(told):
    told.figures["worst_case"]["erase"]["multiplier"] = {"steps": math.inf}
    assert failed(told, "cost[erase]<2") == "" and failed(told, "cost[erase]>2")
    told.figures["worst_case"]["erase"]["multiplier"] = {"steps": math.nan}
    assert "does not reach it either" in failed(told, "cost[erase]<2")


def test_the_docs_list_every_figure_with_the_same_words():
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    for names in (AUDIT, IMMUNIZE):
        for name, words in names.items():
            assert f"| `{name}` | {words} |" in page
