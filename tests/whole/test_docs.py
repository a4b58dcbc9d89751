"""What the docs show is what the records hold."""

import importlib
import io
import re
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from helpers import ROOT, doc_code
from immunis.core.records import Record

sys.path.insert(0, str(ROOT / "docs"))
build = importlib.import_module("build")


@pytest.mark.parametrize("path", build.PAGES, ids=lambda p: p.name)
def test_tables_equal_their_records(path):
    text = path.read_text(encoding="utf-8")
    assert build.page(text) == text, "run: python docs/build.py"
    assert text.count("<!-- table:") == len(build.BLOCK.findall(text))


def test_audits_of_one_original_are_joined_and_a_mended_attack_is_the_last_ones():
    def audit(attacks, model):
        figures = {"models": {"original": 1, model: 2}, "attacks": {}}
        for name, score in attacks.items():
            row = {"score": score}
            figures["attacks"][name] = {"original": row, model: row}
        settings = dict.fromkeys(("budget", "seeds", "search", "space"), 1)
        return Record("audit", "x", figures, settings=settings)

    old, new = audit({"ridge": 1, "kernel": 2}, "old"), audit({"ridge": 1, "kernel": 3}, "new")
    again = audit({"kernel": 3}, "again")
    found = build.joined([audit({"tuning": 5}, "old"), again, old, new]).figures
    assert set(found["models"]) == {"original", "old", "new", "again"}
    assert set(found["attacks"]["ridge"]) == {"original", "old", "new"}
    assert set(found["attacks"]["kernel"]) == {"original", "new", "again"}  # whatever the order
    with pytest.raises(ValueError, match="differ in ridge on original: 7 and 1"):
        build.joined([old, audit({"ridge": 7}, "new")])


FIGURES = [(name, figure) for name, wanted in build.FIGURES.items() for figure in wanted]


def differs(one: bytes, two: bytes) -> bool:
    """Whether two PNGs show something else: size, or more than one pixel in a hundred."""
    first, second = (imread(io.BytesIO(each))[..., :3] for each in (one, two))
    if first.shape != second.shape:
        return True
    return bool((np.abs(first - second).max(-1) > 0.2).mean() > 0.01)


@pytest.fixture(scope="module")
def redrawn():
    return {each: build.drawn(*each) for each in FIGURES}


def test_figures_are_what_their_records_draw(redrawn):
    for each in FIGURES:
        image = build.image(*each).read_bytes()
        assert build.record(each[0]).digest().encode() in image, "run: python docs/build.py"
        assert not differs(image, redrawn[each]), f"{each}; run: python docs/build.py"


def test_a_figure_in_the_place_of_another_is_noticed(redrawn):
    for each in FIGURES:
        for other in FIGURES:
            assert differs(build.image(*other).read_bytes(), redrawn[each]) == (each != other)


def test_the_attack_in_the_docs_passes_the_contract():
    (code,) = (b.code for b in doc_code.blocks(ROOT / "docs" / "add-an-attack.md") if b.title)
    found: dict = {}
    exec(compile(code, "add-an-attack.md", "exec"), found)
    from helpers.arenas import arena_for
    from immunis.attacks.search import search

    arena = arena_for(found["ATTACK"])
    assert search(found["ATTACK"], arena).points[-1].test > 0.9


@pytest.mark.parametrize("path", build.PAGES, ids=lambda p: p.name)
def test_links_between_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target
            inside = (path.parent / target).resolve().is_relative_to(ROOT / "docs")
            assert inside or path.parent == ROOT, f"{target} is no page of the site"


def test_every_test_that_the_reliability_table_names_exists():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)(?:::(\w+))?`", text)
    written = build.BLOCK.sub("", text)  # by hand, not from a record
    rows = [line for line in written.splitlines() if line.startswith("| ")]
    headings = sum(line.startswith("| fault or input") for line in rows)
    shown = sum(bool(re.search(r"`[\w/]+\.py::\w+", row)) for row in rows)
    assert shown == len(rows) - headings, "each row names the test that shows it"
    for file, *names in named:
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        for name in filter(None, names):
            assert re.search(rf"^ *(def|class) {name}\b", source, re.M), f"{file}::{name}"
