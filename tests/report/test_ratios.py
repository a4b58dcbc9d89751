"""RIR between features of different ranks: no number anywhere, of old records too."""

import json

import pytest
import torch

from helpers import RESULTS
from immunis import Record, audit, immunize
from immunis.report.audit_tables import models_table
from immunis.report.card import render
from immunis.report.compare import compare
from immunis.report.figures import figures_of
from immunis.report.model_card import model_card
from immunis.report.ratios import ratio
from immunis.report.tables import demo_table, immunize_table

WORDS = "not defined: ranks differ"


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_no_report_of_a_defence_that_lowers_the_rank_shows_a_ratio(pair, tmp_path):
    erased = immunize(torch.eye(5), *pair, "erase", strength=0.0)
    for record in (erased.record, Record.load(erased.record.save(tmp_path / "r.json"))):
        for found in (record.figures["rir"], record.figures["rir_against_inputs"]):
            assert found["value"] is None and found["reason"] == "ranks differ"
        assert ratio(record).startswith(f"RIR is {WORDS}") and WORDS in model_card(record)
        assert WORDS in render(record) and immunize_table(record).markdown().count(WORDS) == 2
    models = {"original": torch.eye(5), "erase": erased}
    found = audit(models, *pair, attacks=["ridge"], effort={"seeds": 1, "budget": 2}).record
    row = found.figures["models"]["erase"]
    assert row["rir"] is None and row["rir_reason"] == "ranks differ"
    assert row["definition"]["harmful"] == {"figure": None, "holds": None}
    assert "rir_reason" not in found.figures["models"]["original"]
    for text in (models_table(found).markdown(), render(found), model_card(found)):
        assert WORDS in text
    assert WORDS in compare([found, erased.record])[0].markdown()


def test_old_records_show_no_ratio_where_their_ranks_differ():
    path = RESULTS / "audit-mnist-digits.json"
    held, record = json.loads(path.read_text())["figures"]["models"], Record.load(path)
    ranks = {name: (row["rank_primary"], row["rank_harmful"]) for name, row in held.items()}
    unlike = {name for name in ranks if ranks[name] != ranks["original"]}
    assert unlike == {n for n, row in record.figures["models"].items() if row["rir"] is None}
    cells = {row[0].removesuffix(" (broken)"): row[4] for row in models_table(record).rows}
    assert {name for name, cell in cells.items() if cell == WORDS} == unlike


def test_the_demo_shows_none_for_erasure(demo_record):
    cells = {row[0]: row[3] for row in demo_table(demo_record).rows}
    assert {name for name, cell in cells.items() if cell == WORDS} == {"erase ε=0"}
    for draw in figures_of(demo_record).values():
        assert draw(demo_record)
