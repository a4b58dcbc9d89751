"""What people see of a result: text, HTML, a DataFrame, a figure."""

import io
import subprocess
import sys
from dataclasses import replace
from html import unescape

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from helpers import RESULTS
from immunis import Audit, InputError, Record, SettingsError, immunize, measure
from immunis.report.display import grid
from immunis.report.markup import Table
from immunis.report.ratios import measured_words
from immunis.report.text import headline


@pytest.fixture(scope="module")
def results(audit_record, demo_record):
    from helpers.tasks import make_task

    pair = make_task(80, seed=1, name="primary"), make_task(80, seed=2, name="harmful", shift=0.5)
    return {
        "measure": measure(*pair),
        "immunize": immunize(torch.eye(5), *pair, "erase"),
        "audit": Audit(audit_record),
        "demo": demo_record,
    }


SAID = {  # a cell of its table, and the words below
    "measure": ("samples", measured_words),
    "immunize": ("κ, harmful", headline),
    "audit": ("by attack", headline),
    "demo": ("frontier", headline),
}


def said(kind, results):
    cell, words = SAID[kind]
    return [cell, " ".join(words(results[kind].record).split())]


@pytest.mark.parametrize("kind", SAID)
class TestResults:
    def test_print_shows_the_table_and_what_it_means(self, kind, results):
        text = str(results[kind])
        assert all(word in " ".join(text.split()) for word in said(kind, results))
        assert max(map(len, text.splitlines())) <= 120 and "\x1b" not in text
        assert text == str(results[kind].record)  # a result and its record look alike

    def test_a_notebook_shows_the_same_as_html(self, kind, results):
        html = results[kind]._repr_html_()
        assert html.count("<table>") == html.count("</table>") >= 2
        assert all(word in unescape(html) for word in said(kind, results))

    def test_a_frame_holds_numbers(self, kind, results):
        pytest.importorskip("pandas")
        frame = results[kind].to_frame()
        assert len(frame) >= 2 and len(frame.select_dtypes("number").columns) >= 2

    def test_a_plot_is_a_figure(self, kind, results):
        figure = results[kind].plot()
        assert isinstance(figure, Figure) and figure.axes
        assert figure._repr_png_()[:4] == b"\x89PNG"  # pyplot need not be imported
        assert len(results[kind].plot("spectra").axes) == 2
        with pytest.raises(SettingsError, match="unknown figure 'spectr': did you mean 'spectra'"):
            results[kind].plot("spectr")

    def test_its_repr_is_one_short_line(self, kind, results):
        assert len(repr(results[kind])) < 200 and "\n" not in repr(results[kind])


def test_the_frame_of_an_audit_has_every_attack_and_model(audit_record):
    pytest.importorskip("pandas")
    frame = audit_record.to_frame().set_index(["attack", "model"])
    for attack, rows in audit_record.figures["attacks"].items():
        for model, found in rows.items():
            assert frame.loc[(attack, model), "status"] == found["status"]
            if found["status"] == "done":
                assert frame.loc[(attack, model), "score"] == found["score"]["mean"]


def test_without_pandas_the_error_names_the_command(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match=r"pip install 'immunis\[openml\]'"):
        results["measure"].to_frame()


def test_other_records_say_what_they_are_and_refuse_the_rest():
    record = Record("bench", "speed", {"x": 1})
    assert str(record).startswith("bench: speed")
    assert "<table>" not in record._repr_html_()
    for ask in (record.to_frame, record.plot):
        with pytest.raises(InputError, match="of kind 'bench'.*expected one of"):
            ask()


def test_a_narrow_terminal_wraps_intervals_and_cuts_none_off():
    cell = "−33.8 (−42.3 to −23.5)"
    table = Table("gains", ["attack", *"abcd"], [["finetune_all", cell, cell, cell, cell]])
    page = Console(file=io.StringIO(), width=80)
    page.print(grid(table))
    for word in ("finetune_all", *cell.split()):
        assert page.file.getvalue().count(word) == (1 if word == "finetune_all" else 4), word


def test_names_cannot_leave_their_place(results):
    evil = "<script>\x1b[31m[bold]x[/bold]"
    record = replace(results["immunize"].record, name=evil)
    assert "<script>" not in record._repr_html_() and "&lt;script&gt;" in record._repr_html_()
    assert "\x1b" not in str(record) and "[bold]x[/bold]" in str(record)


def test_a_record_shows_itself_when_only_its_module_was_imported():
    code = (
        "from immunis.core.records import Record; import sys; "
        "assert 'immunis.public' not in sys.modules; "
        f"print(Record.load({str(RESULTS / 'demo.json')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "frontier" in done.stdout, done.stderr
