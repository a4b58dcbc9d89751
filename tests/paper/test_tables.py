"""Tables and figures come from the record alone."""

import copy
import csv
import io
import json
import math

import pytest

from immunis import Record
from immunis.paper import write
from immunis.paper.figures import FIGURES
from immunis.paper.tables import binary_table, flat_table, tables_of


@pytest.fixture(params=["house_record", "mnist_record"])
def record(request, tmp_path):
    """A record as it is read back from its file."""
    return Record.load(request.getfixturevalue(request.param).save(tmp_path / "read-back.json"))


def test_every_table_is_written_for_people_and_for_programs(record, tmp_path, monkeypatch):
    name, draw = next(iter(FIGURES[record.name].items()))
    monkeypatch.setitem(FIGURES, record.name, {name: draw})
    paths = {path.name: path for path in write(record, tmp_path / "out")}
    assert set(paths) >= {"record.json", "tables.md", "tables.tex", "figures.csv"}
    for kind in ("png", "pdf"):
        assert record.digest().encode() in paths[f"{name}.{kind}"].read_bytes()
    markdown = paths["tables.md"].read_text()
    for table in tables_of(record):
        assert table.title in markdown
        assert all(len(row) == len(table.columns) for row in table.rows)
    latex = paths["tables.tex"].read_text()
    assert (
        latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == len(tables_of(record))
    )
    assert "κ" not in latex.replace("% ", "") or r"$\kappa$" in latex
    flat = list(csv.DictReader(io.StringIO(paths["figures.csv"].read_text())))
    assert len(flat) == len(flat_table(record).rows) > 20
    assert all(math.isfinite(float(row["value"])) for row in flat if row["kappa"] == "published")
    kinds = {"rir", "ceiling", "verdict", "ridge score", "gd_line_search cost ×"}
    assert kinds <= {row["figure"] for row in flat}
    assert all(row["text"] for row in flat if row["figure"] == "verdict")
    assert len(json.dumps(record.to_dict())) < 1_000_000


def test_every_figure_names_its_record(record):
    drawn = {name: draw(record) for name, draw in FIGURES[record.name].items()}
    assert len(set(drawn.values())) == len(drawn)
    assert all(record.digest().encode() in image for image in drawn.values())


def test_a_method_without_any_theta_has_no_rir(mnist_record):
    record = copy.deepcopy(mnist_record)
    row = next(r for r in record.figures["protocols"]["binary"]["rows"] if r["method"] == "imma")
    for key in ("released", "honest", "successes"):
        del row[key]
    row["attacks"] = {}
    lines = {line[0]: line for line in binary_table(record).rows}
    assert lines["IMMA"][1:4] == ["0", "–", "–"]
    assert lines["identity"][1:4] == ["2", "1", "1"]
