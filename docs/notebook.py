"""Run a notebook as Jupyter would, without Jupyter, and store its outputs.

python docs/notebook.py        runs examples/tour.ipynb and writes it with its outputs

Printed text, what the last line of a cell is, and figures are stored; stderr is not, because it
holds progress and warnings. Nothing of the machine is stored.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def executed(path: Path) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, run from top to bottom in this folder."""
    import matplotlib.pyplot as plt

    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown, plt.show = plt.show, lambda: None  # figures are stored at the end of their cell
    try:
        for number, cell in enumerate(cells, 1):
            cell["execution_count"] = number
            cell["outputs"] = _run("".join(cell["source"]), names, number)
    finally:
        plt.show = shown
    return notebook


def _run(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    import matplotlib.pyplot as plt

    tree, last, printed = ast.parse(source), None, io.StringIO()
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = None if last is None else eval(compile(last, f"cell {number}", "eval"), names)
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(True)})
    if value is not None:
        data = _data(value)
        found.append({"data": data, "execution_count": number, "metadata": {}})
        found[-1]["output_type"] = "execute_result"
    found += [
        {"data": _data(plt.figure(each)), "metadata": {}, "output_type": "display_data"}
        for each in plt.get_fignums()
    ]
    plt.close("all")
    return found


def _data(value: Any) -> dict[str, Any]:
    """Return a value in the forms that a notebook shows it in."""
    found: dict[str, Any] = {"text/plain": repr(value).splitlines(True)}
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    if html is not None:
        found["text/html"] = html.splitlines(True)
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", metadata={"Software": None})
        found["image/png"] = base64.b64encode(buffer.getvalue()).decode() + "\n"
    return found


def main() -> None:
    """Run the tour and write it with its outputs."""
    import matplotlib as mpl

    mpl.use("agg")
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:  # what the cells write is not kept
        os.chdir(folder)
        notebook = executed(TOUR)
        os.chdir(here)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    TOUR.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"written: {TOUR} ({TOUR.stat().st_size:,} bytes)\n")


if __name__ == "__main__":
    main()
