"""Write a reproduction down: record, tables (Markdown, LaTeX, CSV) and figures (PNG, PDF)."""

from __future__ import annotations

from pathlib import Path

from immunis.core.files import release
from immunis.core.records import Record
from immunis.paper.figures import FIGURES
from immunis.paper.tables import flat_table, tables


def write(record: Record, folder: str | Path) -> list[Path]:
    """Write everything made from a record into a folder and return the paths.

    Tables for people go to ``tables.md`` and ``tables.tex``, plain numbers to ``figures.csv``.
    """
    made = tables(record)
    drawn = {
        f"{name}.{kind}": draw(record, kind)
        for name, draw in FIGURES[record.name].items()
        for kind in ("png", "pdf")
    }
    return release(folder, {
        "record.json": record.to_file(),
        "tables.md": "\n\n".join(f"## {t.title}\n\n{t.markdown()}" for t in made) + "\n",
        "tables.tex": "\n\n".join(t.latex() for t in made) + "\n",
        "figures.csv": flat_table(record).csv(),
        **drawn,
    })  # fmt: skip
