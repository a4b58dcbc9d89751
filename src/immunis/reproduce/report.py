"""Write a reproduction down: record, tables (Markdown, LaTeX, CSV) and figures (PNG, PDF)."""

from __future__ import annotations

from pathlib import Path

from immunis.records import Record, make_folder, write_bytes, write_text
from immunis.reproduce.figures import FIGURES
from immunis.reproduce.tables import flat_table, tables


def write(record: Record, folder: str | Path) -> list[Path]:
    """Write everything made from a record into a folder and return the paths.

    Tables for people go to ``tables.md`` and ``tables.tex``, plain numbers to ``figures.csv``.
    """
    place = make_folder(folder)
    made = tables(record)
    paths = [
        record.save(place / "record.json"),
        write_text(
            place / "tables.md", "\n\n".join(f"## {t.title}\n\n{t.markdown()}" for t in made) + "\n"
        ),
        write_text(place / "tables.tex", "\n\n".join(t.latex() for t in made) + "\n"),
        write_text(place / "figures.csv", flat_table(record).csv()),
    ]
    return paths + [
        write_bytes(place / f"{name}.{kind}", draw(record, kind))
        for name, draw in FIGURES[record.name].items()
        for kind in ("png", "pdf")
    ]
