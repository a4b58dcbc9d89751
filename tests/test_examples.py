"""Every example runs from top to bottom, as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


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
