import torch

from helpers import RESULTS
from immunis import Record, immunize
from immunis.report.compare import compare
from immunis.report.query import WIDE
from immunis.report.tables import verdicts


def test_records_are_compared_side_by_side(audit_record, pair):
    tiny = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    tiny.figures["models"]["opt_kappa"]["broken"] = True
    immunized = immunize(torch.eye(5), *pair, "erase").record
    few, _ = compare([audit_record, immunized])
    assert few.columns[1:] == ["condition (1)", "frontier (1)", "erase (1)", "erase (2)"]
    table, notes = compare([audit_record, tiny, immunized])  # many: one row each
    assert [row[0] for row in table.rows][:3] == ["condition (1)", "frontier (1)", "erase (1)"]
    rows = {
        what: {row[0]: row[place] for row in table.rows}
        for place, what in enumerate(table.columns[1:], 1)
    }
    assert rows["help an attack keeps"]["frontier (1)"] == "–²"
    assert table.notes == (f"² not enough evidence: {WIDE}, or not known.",)
    assert rows["help an attack keeps"]["condition (2)"] == "100%"
    assert rows["help an attack keeps"]["opt_kappa (2)"] == "–"
    most = rows["highest score of any attack"]
    assert most["frontier (1)"] == "93.2%" and rows["by"]["frontier (1)"] == "invert_last"
    assert rows["on the original"]["frontier (1)"] == "94.6%"
    assert rows["on an untrained copy"]["frontier (1)"] == "88.6%"
    assert rows["most that an attack gains"]["frontier (1)"] == "+13.2 points"
    assert most["opt_kappa (2)"] == "broken, not immune"
    assert most["erase (3)"] == "no attacker run"
    assert rows["primary"]["plain (2)"] == "+0.8 points (46.4%)"
    assert rows["RIR"]["condition (2)"] == "954"
    found = rows["Definition 3.1 (a), (b), (c)"]
    assert found["condition (2)"] == "–"  # an earlier version wrote the record
    assert found["erase (3)"] == "; ".join(verdicts(immunized.figures["definition"]))
    assert "primary data, the attacker's data, attacks, budgets" in notes[0]
    assert "defender's own" in notes[1]


def test_audits_of_the_same_models_have_one_row_with_the_highest_score_of_all(audit_record):
    names = ("held", "tuning")
    files = (f"audit-tiny-imagenet-cars-resnet18-{name}.json" for name in names)
    held, tuning = (Record.load(RESULTS / file) for file in files)
    table, _ = compare([held, audit_record, tuning])
    assert table.columns[1:] == ["probe-held (1)", "condition (2)", "frontier (2)", "erase (2)"]
    told = {row[0]: row[1] for row in table.rows}
    assert told["highest score of any attack"] == "19.2%" and told["by"] == "reinit_last"
    assert told["attacks, steps, seeds"] == "17, 200, 3"
