import torch

from helpers import RESULTS
from immunis import Record, immunize
from immunis.report.compare import compare


def test_records_are_compared_side_by_side(audit_record, pair):
    tiny = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    tiny.figures["worst_case"]["opt_kappa"]["broken"] = True
    immunized = immunize(torch.eye(5), *pair, "erase").record
    few, _ = compare([audit_record, immunized])
    assert few.columns[1:] == ["condition (1)", "frontier (1)", "erase (1)", "erase (2)"]
    table, notes = compare([audit_record, tiny, immunized])  # many: one row each
    assert [row[0] for row in table.rows][:3] == ["condition (1)", "frontier (1)", "erase (1)"]
    rows = {
        what: {row[0]: row[place] for row in table.rows}
        for place, what in enumerate(table.columns[1:], 1)
    }
    assert rows["help the worst attack keeps"]["frontier (1)"] == "159%"
    assert rows["help the worst attack keeps"]["opt_kappa (2)"] == "broken, not immune"
    assert rows["help the worst attack keeps"]["erase (3)"] == "no attacker run"
    assert rows["worst attack"]["condition (2)"] == "earlier_layer"
    assert rows["primary"]["plain (2)"] == "+0.8 points (46.4%)"
    assert rows["RIR"]["condition (2)"] == "954"
    assert "primary data, the attacker's data, attacks, budgets" in notes[0]
    assert "defender's own" in notes[1]
