"""What the docs show is what the records hold."""

import importlib
import io
import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

import immunis
from helpers import RESULTS, ROOT, doc_code
from immunis.core.records import Record

sys.path.insert(0, str(ROOT / "docs"))
build, age = map(importlib.import_module, ("build", "age"))


@pytest.mark.parametrize("path", build.PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_tables_equal_their_records(path):
    text = path.read_text(encoding="utf-8")
    assert build.page(text) == text, "run: python docs/build.py"
    assert text.count("<!-- table:") == len(build.BLOCK.findall(text))


def test_a_line_above_a_table_says_what_its_record_was_made_before():
    def audit(day, commit, **figures):
        return Record("audit", "x", figures, created=f"{day}T00:00:00+00:00", commit=commit * 40)

    today = audit("2027-01-01", "a", scored={}, factors={})
    older = audit("2026-01-01", "b")
    assert age.note([today]) == ""
    assert "Made by 2027-01-01" in age.note([today, older])
    assert "`aaaaaaa`, `bbbbbbb`" in age.note([today, older])
    parts = {"killed": {"commit": None}, "lost": {"commit": "c"}}
    faults = Record("bench", "faults", {}, parts, commit="c" * 40)
    assert age.note([faults]) == "*These parts name no commit: killed.*\n\n"
    gone = Record("bench", "core", {}, commit=age.GONE[0] + "0" * 31)
    assert "not in the history" in age.note([gone])
    changed = Record("bench", "core", {}, commit="a" * 40 + "+")
    assert "`aaaaaaa`, with changes that were not committed" in age.note([changed])


def test_commits_of_records_are_in_the_history_or_said_to_be_gone():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs the history of the repository")
    every = set(git("rev-list", "HEAD").stdout.split())
    records = [Record.load(path) for path in RESULTS.glob("*.json")]
    lost = {r.commit for r in records if r.commit and r.commit.rstrip("+") not in every}
    assert {commit[:9] for commit in lost} == set(age.GONE)


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


@pytest.mark.parametrize("path", build.PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target
            inside = (path.parent / target).resolve().is_relative_to(ROOT / "docs")
            assert inside or path.parent == ROOT, f"{target} is no page of the site"


def test_the_api_pages_have_every_public_name_on_the_page_of_its_room():
    shown = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.M):
            assert name.split(".")[1] == page.stem, f"{name} stands on {page.name}"
            assert name not in shown, f"{name} is shown twice"
            shown.add(name)
    for name in set(immunis.__all__) - {"__version__"}:
        room = getattr(immunis, name).__module__
        assert {room, f"{room}.{name}"} & shown, f"{name} of {room} is on no page in docs/api"


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
