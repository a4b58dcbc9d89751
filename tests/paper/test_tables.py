"""Tables and figures come from the record alone."""

import copy
import csv
import dataclasses
import io
import json
import math

import pytest

from immunis import Record
from immunis.paper import write
from immunis.paper.figures import FIGURES
from immunis.paper.tables import (
    binary_table,
    factors_table,
    flat_table,
    floor_table,
    pairs_table,
    rir_table,
    tables_of,
)
from immunis.report.format import number


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
    kinds = {"rir", "ceiling", "replicates", "holds", "ridge score", "gd_line_search cost ×"}
    assert kinds <= {row["figure"] for row in flat}
    assert all(row["text"] for row in flat if row["figure"] in ("replicates", "holds"))
    assert len(json.dumps(record.to_dict())) < 1_000_000


def test_one_seed_has_no_deviation_in_its_titles(record):
    for seeds, said in ((1, "one seed"), (2, "± std over seeds")):
        one = dataclasses.replace(record, settings={**record.settings, "seeds": seeds})
        assert said in rir_table(one).title and said in factors_table(one).title


def test_definition_31_stands_beside_rir(record):
    """A record of before the counts has medians over all runs in their place."""
    part = record.figures if record.name == "house-prices" else record.figures["protocols"]["paper"]
    for table in (rir_table(record), factors_table(record)):
        lines = [dict(zip(table.columns, line, strict=True)) for line in table.rows]
        for row, line in zip(part["rows"], lines, strict=True):
            runs = row["runs"] - row["failed"]
            if not runs:
                continue
            assert line["3.1 (a)"] == f"{row['definition']['harmful']} of {runs}"
            assert line["3.1 (b)"] == f"{row['definition']['primary']} of {runs}"
            if record.name == "house-prices":  # one pair: the values are the runs
                values = row["honest"]["primary"]["values"]
                assert row["definition"]["primary"] == sum(value <= 1 + 1e-4 for value in values)
    old = copy.deepcopy(record)
    part = old.figures if old.name == "house-prices" else old.figures["protocols"]["paper"]
    del part["rows"][0]["definition"]
    line = rir_table(old).rows[0]
    middle = number(part["rows"][0]["honest"]["harmful"]["median"])
    assert line[rir_table(old).columns.index("3.1 (a)")] == f"median {middle}"


def test_the_runs_that_rounding_moves_are_counted(mnist_record):
    record = copy.deepcopy(mnist_record)
    row = record.figures["protocols"]["paper"]["rows"][0]
    table = pairs_table(record)
    place = table.columns.index("moved by rounding (3 draws a run)")
    assert table.rows[0][place] == f"{row['moved']} of {row['runs']} runs"
    del row["moved"]  # as in a record of before
    assert pairs_table(record).rows[0][place] == "–"


def test_every_figure_names_its_record(record):
    drawn = {name: draw(record) for name, draw in FIGURES[record.name].items()}
    assert len(set(drawn.values())) == len(drawn)
    assert all(record.digest().encode() in image for image in drawn.values())


def test_a_method_without_any_theta_has_no_rir(mnist_record):
    record = copy.deepcopy(mnist_record)
    row = next(
        r for r in record.figures["protocols"]["binary"]["rows"] if r["method"] == "algorithm_1"
    )
    for key in ("released", "honest", "successes"):
        del row[key]
    row["attacks"] = {}
    lines = {line[0]: line for line in binary_table(record).rows}
    assert lines["Alg. 1, released"][1:4] == ["0", "–", "–"]
    assert lines["identity"][1:4] == ["2", "1", "1"]


def test_a_row_of_another_version_is_drawn_all_the_same(house_record):
    record = copy.deepcopy(house_record)
    curves = record.figures["norm_ratio"]["curves"]
    curves["newcomer"] = curves["frontier"]
    assert FIGURES["house-prices"]["norm-ratio"](record)


def test_a_figure_that_rounding_moves_has_its_range_beside_it(house_record):
    record = copy.deepcopy(house_record)
    row = next(row for row in record.figures["rows"] if row["method"] == "frontier")
    row["released"]["rir"] |= {"mean": 3000.0, "low": 2855.0, "high": 2.9e9, "again": 3000.0}
    line = next(line for line in rir_table(record).rows if line[0] == "frontier (ours)")
    assert any("(rounding: 2855 to 2.9e9)" in cell for cell in line)
    inputs = record.figures["pair"]["harmful"]
    inputs["released_tenfold"] = {"median": 2e11, "low": 2.1e5, "high": 2e11}
    assert floor_table(record).rows[1][2] == "2.0e11 (rounding: 2.1e5 to 2.0e11)"
