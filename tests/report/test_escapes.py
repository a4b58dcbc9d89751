"""Hostile text in a record stays text, in every format that is made of it."""

import collections
import contextlib
import csv
import io
import json
import re

import numpy as np
import pytest

from helpers import forging
from immunis import InputError, Record
from immunis.report.markup import Table, inline
from immunis.report.style import plain


@pytest.mark.parametrize("pictures", [False, True])
def test_forged_records_are_refused_or_stay_text(tmp_path, pictures):
    rng, accepted, faults = np.random.default_rng(0), 0, collections.Counter()
    for _ in range(20 if pictures else 100):
        sound, found = forging.forge(rng, tmp_path, pictures)
        accepted += sound
        faults.update(found)
    assert not faults, faults.most_common(5)
    assert accepted >= (2 if pictures else 50)


def test_the_list_of_runs_is_looked_at_and_its_check_sees_what_it_is_for(tmp_path):
    record = forging.load(forging.originals()["audit"], tmp_path)
    made = {**forging.shown(record), "runs": forging.page(tmp_path, "/")}
    assert record.name[:20] in made["runs"] and forging.injected(record, made) == []
    for bad in ("<script>", "<a href='https://evil.example'>", "<a href='/card/0' onclick='x'>"):
        assert forging.injected(record, {**made, "runs": made["runs"] + bad}), bad
    assert forging.injected(record, {**made, "hub": made["hub"] + "\n<b>x</b>"})


def test_a_backslash_before_a_bracket_makes_no_link():
    assert inline(r"\[click](x) &lt;") == r"\\\[click](x) &amp;lt;"
    assert forging.markdown("[a](b) <i> ![c](d)")  # the check itself sees them


@pytest.mark.parametrize(
    "text",
    [
        "https://evil.example",
        r"\[click](https://evil.example)",
        "HTTP://evil.example",
        "WWW.evil.example",
        "me@evil.example",
        r"$$\href{https://evil.example}{x}$$",
        "$x$",
    ],
)
def test_pages_make_neither_links_nor_mathematics_of_a_name_by_themselves(text):
    assert forging.markdown(text)
    assert not forging.markdown(inline(text))
    assert inline(text).replace("\u2060", "").replace("\\", "") == text.replace("\\", "")


def test_a_table_in_latex_keeps_its_rows_and_its_title_is_a_comment():
    table = Table("a\n\\input{x}", ["*", "b"], [["[2cm] a\n\nb", r"\input{x}"]])
    assert forging.latex(table) == []
    assert table.latex().startswith("% a \\input{x}\n\\begin")
    assert r"{[}2cm{]} a b & \textbackslash{}input\{x\} \\" in table.latex()


def test_a_spreadsheet_computes_nothing_and_numbers_stay_numbers():
    table = Table("", ["=1", "b"], [["-0.5", "-1e300"], ["+x", "-2+3"], ["@a", "\t=1"]])
    rows = table.csv().splitlines()
    assert rows == ['"\'=1","b"', "-0.5,-1e300", '"\'+x","\'-2+3"', '"\'@a","\t\'=1"']
    assert forging.formulas(table) == []


@pytest.mark.parametrize(
    "text", [" =1+1", "\n=1", "\ufeff=1", "＝1", "－1+1", "＠a", "a;=1", "a,+b", 'a";"=1', "a\r@b"]
)
def test_a_formula_is_found_behind_blanks_and_separators(text):
    assert forging.computes(re.split("[;,\r]", text)[-1].replace('"', ""))  # the check sees them
    table = Table("", ["a", text], [[text, "1.5"]])
    assert forging.formulas(table) == []
    head, row = csv.reader(io.StringIO(table.csv(), newline=""))
    assert head[1].replace("'", "") == row[0].replace("'", "") == text and row[1] == "1.5"


def test_names_in_figures_are_not_mathematics_and_not_hidden():
    assert plain("$x$ and \\$") == r"\$x\$ and \\$"
    assert plain("_name") == " _name"


def test_a_record_without_its_checksum_is_refused(tmp_path):
    path = Record("bench", "x", {}).save(tmp_path / "r.json")
    text = path.read_text()
    bare = text[: text.rindex(',\n "checksum"')] + "\n}\n"
    for created in (json.loads(text)["created"], "2020-01-01", ""):
        path.write_text(json.dumps({**json.loads(bare), "created": created}))
        with pytest.raises(InputError, match=r"r\.json has no checksum"):
            Record.load(path)


@pytest.mark.parametrize("text", ["<b>", "", "[x](y)"])
def test_a_commit_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="expected the hash of a commit"):
        forging.load({**forging.originals()["audit"], "commit": text}, tmp_path)


@pytest.mark.parametrize("kind", ["audit", "immunize", "measure"])
def test_a_number_of_any_size_in_any_place_is_refused_or_shown(tmp_path, kind):
    rng, accepted = np.random.default_rng(0), 0
    sizes = [10**400, 10**30, 2**63, -1, 0, 1e308, -1e308, 5e-324]
    sizes += ["NaN", "Infinity", "-Infinity", None, True, [], {}]
    places = list(forging.places(forging.originals()[kind]))
    for number in rng.choice(len(places), min(80, len(places)), replace=False):
        values = forging.changed(kind, places[number], sizes[rng.integers(len(sizes))])
        with contextlib.suppress(InputError):
            record = forging.load(values, tmp_path)
            accepted += 1
            forging.shown(record)
    assert accepted >= 10


@pytest.mark.parametrize("place", [("chance",), ("attacks", "lora", "erase", "search_flops")])
def test_endless_scores_and_costs_are_refused_or_shown(tmp_path, place):
    for size in (10**400, "-Infinity"):
        values = forging.changed("audit", ("figures", *place), size)
        with contextlib.suppress(InputError):
            forging.shown(forging.load(values, tmp_path))
