"""Every example runs from top to bottom, as a user would run it."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "said"),
    [("quickstart", "written:"), ("audit_only", "reaches"), ("timm_resnet", "plain timm: True")],
)
def test_the_example_runs(name, said, tmp_path):
    if name == "timm_resnet":
        pytest.importorskip("timm")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", EXAMPLES / f"{name}.py", tmp_path / "out"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_the_notebook_runs_and_holds_no_output(tmp_path, monkeypatch, capsys):
    """Its cells are plain Python, so they are run as such, without a kernel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    names: dict = {}
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(c for c in cells if c["cell_type"] == "code"):
        assert not cell["outputs"]
        assert cell["execution_count"] is None
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert "worst case:" in capsys.readouterr().out
