"""What the docs show is what the records hold."""

import importlib.util
import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.mark.parametrize("path", build.PAGES, ids=lambda p: p.name)
def test_tables_equal_their_records(path):
    text = path.read_text(encoding="utf-8")
    assert build.page(text) == text, "run: python docs/build.py"
    assert text.count("<!-- table:") == len(build.BLOCK.findall(text))


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


def test_the_attack_in_the_docs_passes_the_contract(monkeypatch):
    text = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.S)[-1]
    assert code.count("\n") < 40
    found: dict = {}
    exec(compile(code, "attacks.md", "exec"), found)
    from immunis.attacks.search import search
    from test_attacks import arena_for

    arena = arena_for(found["ATTACK"])
    assert search(found["ATTACK"], arena).points[-1].test > 0.9


@pytest.mark.parametrize("path", build.PAGES, ids=lambda p: p.name)
def test_links_between_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_the_architecture_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {p.name for p in (ROOT / "src" / "immunis").glob("*.py")} - {
        "__init__.py",
        "_version.py",
    }
    rooms |= {f"{p.name}/" for p in (ROOT / "src" / "immunis").iterdir() if p.is_dir()}
    rooms.discard("__pycache__/")
    assert not {room for room in rooms if room not in text}
