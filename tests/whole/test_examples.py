"""Every example runs from top to bottom, as a user would run it, but for shorter attacks."""

import importlib
import json
import os
import re
import subprocess
import sys

import pytest

from helpers import ROOT

sys.path.insert(0, str(ROOT / "docs"))
notebook = importlib.import_module("notebook")
EXAMPLES = ROOT / "examples"
NEEDED = {"timm_resnet": "timm", "sentence_encoder": "transformers"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quickstart", "written:"),
        ("audit_only", "reaches"),
        ("timm_resnet", "plain timm: True"),
        ("sentence_encoder", "the same rows: True"),
    ],
)
def test_the_example_runs(name, said, tmp_path):
    if (needed := NEEDED.get(name)) is not None:
        pytest.importorskip(needed)
    command = [sys.executable, "-W", "ignore", "-m", "helpers.short"]
    done = subprocess.run(
        [*command, EXAMPLES / f"{name}.py", tmp_path / "out"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def shape(cell):
    """What a cell shows, without the numbers: kinds of output, printed words, heads of tables."""
    found = []
    for output in cell["outputs"]:
        text = "".join(output.get("text", ()))
        html = "".join(output.get("data", {}).get("text/html", ()))
        words = [re.sub(r"[\d.]+", "#", text), *re.findall("<th>.*?</th>", html)]
        found.append((output["output_type"], sorted(output.get("data", ())), words))
    return found


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_the_notebook_runs_and_shows_what_is_stored_in_it(tmp_path, monkeypatch):
    """Its cells are plain Python, so they are run as such, without a kernel."""
    monkeypatch.chdir(tmp_path)
    stored = json.loads(notebook.TOUR.read_text(encoding="utf-8"))
    for number, cell in enumerate(notebook.executed(notebook.TOUR)["cells"]):
        if cell["cell_type"] == "code":
            said = f"cell {number}; run: python docs/notebook.py"
            assert shape(stored["cells"][number]) == shape(cell) != [], said
            assert stored["cells"][number]["execution_count"] == cell["execution_count"]


def test_the_notebook_is_small_and_holds_nothing_of_a_machine():
    text = notebook.TOUR.read_text(encoding="utf-8")
    assert len(text) < 500_000
    words = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"/(home|root|work|tmp|Users|usr)/|0x[0-9a-f]{6}|stderr", words)
    assert set(json.loads(text)["metadata"]) == {"kernelspec", "language_info"}


def test_a_cell_that_fails_or_shows_a_figure_is_noticed(tmp_path):
    def book(source):
        cell = {"cell_type": "code", "source": [source]}
        (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
        return notebook.executed(tmp_path / "a.ipynb")["cells"][0]["outputs"]

    with pytest.raises(ZeroDivisionError):
        book("1 / 0")
    assert book("x = 1") == []
    (shown,) = book("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\nNone")
    assert set(shown["data"]) == {"text/plain", "image/png"}
    printed, value = book("print('a')\n1 + 1")
    assert printed["text"] == ["a\n"] and value["data"]["text/plain"] == ["2"]
