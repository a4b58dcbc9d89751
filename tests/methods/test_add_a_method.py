"""The page that says how to add a method is true: one file, and nothing else changes."""

import json
import os
import shutil
import subprocess
import sys

from helpers import ROOT, doc_code

DRIVER = """
import json, sys
import immunis.cli.commands  # noqa: F401 - registers them
from immunis.cli.options import app
from immunis.recipes.demo import RUNS

for words in json.loads(sys.argv[1]):
    app(words, standalone_mode=False)
exec(sys.argv[2])
print("demo:", *RUNS)
"""


def test_a_method_is_one_file(tmp_path):
    """Put the page's file into a copy of the package, and run the page's code there."""
    blocks = doc_code.blocks(ROOT / "docs" / "add-a-method.md")
    package = shutil.copytree(ROOT / "src" / "immunis", tmp_path / "immunis")
    for block in (b for b in blocks if b.title):
        folder = package / "methods" if block.language == "python" else tmp_path
        (folder / block.title).write_text(block.code, encoding="utf-8")
    words = [w[1:] for b in blocks if b.language == "console" for w in doc_code.commands(b)]
    (code,) = (b.code for b in blocks if b.language == "python" and not b.title)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(words), code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shrink class means" in done.stdout
    assert "class_means" in done.stdout.rpartition("demo:")[2]
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert record["settings"]["method"] == "class_means"
    assert record["figures"]["details"]["directions"] == 4
