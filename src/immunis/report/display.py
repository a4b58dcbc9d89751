"""Results and records as people look at them: text, HTML, a DataFrame, a figure."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from immunis.core.display import VIEWS
from immunis.core.errors import InputError, unknown
from immunis.core.extras import need
from immunis.core.records import Record, printable
from immunis.report import audit_tables, ratios, tables, text
from immunis.report.markup import Table
from immunis.report.query import ROLES, noted, require_kinds

if TYPE_CHECKING:
    from rich.table import Table as Grid

WIDTH = 120  # columns of text where no terminal says how many it has
Make = Callable[[Record], Any]
SHOWN: dict[str, tuple[Sequence[Make], Make]] = {  # by kind: tables, and words below them
    "measure": ((tables.measure_table, tables.definition_table), ratios.measured_words),
    "immunize": ((tables.immunize_table, tables.definition_table), text.headline),
    "audit": (
        (audit_tables.highest_table, audit_tables.worst_case_table, audit_tables.points_table),
        text.headline,
    ),
    "demo": ((tables.demo_table, tables.definition_table), text.headline),
}


def as_text(record: Record) -> str:
    """Return a record's tables, as wide as the terminal; of other kinds what it is."""
    from rich.console import Console

    made, words = _shown(record)
    width = max(80, shutil.get_terminal_size((WIDTH, 24)).columns)
    page = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    for table in made:
        page.print(grid(table))
    page.print(printable(words), highlight=False, markup=False)
    assert isinstance(page.file, io.StringIO)
    return "\n".join(line.rstrip() for line in page.file.getvalue().strip("\n").split("\n"))


def as_html(record: Record) -> str:
    """Return a record's tables as HTML."""
    made, words = _shown(record)
    return "\n".join([*map(_html, made), f"<p>{escape(words)}</p>"])


def grid(table: Table, words: bool = False) -> Grid:
    """Return a table to print; with ``words``, cells are left-aligned and wrap."""
    import rich.table
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape as plain

    title, padding = plain(printable(table.title)), (0, 1) if words else 0
    look: Any = {"title_justify": "left", "caption_justify": "left", "box": SIMPLE_HEAD}
    notes = plain(printable("\n".join(table.notes))) or None
    found = rich.table.Table(title=title, caption=notes, padding=padding, **look)
    for index, column in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        whole = max(map(len, cells), default=0) > len(column) and not any(" " in c for c in cells)
        found.add_column(
            plain(printable(column)),
            justify="left" if words or index == 0 else "right",
            no_wrap=not words and (index == 0 or whole),  # else its head may break
            overflow="fold",
        )
    for row in table.rows:
        found.add_row(*(plain(printable(cell)) for cell in row))
    return found


def frame(record: Record) -> Any:
    """Return a record's figures as a pandas DataFrame of numbers, not of text.

    measure: one row a task; immunize: one a figure, before and after; audit: one an attack and
    model, the controls too; demo: one a method.
    """
    require_kinds([record], tuple(ROWS), "makes no DataFrame")
    return need("pandas").DataFrame(ROWS[record.kind](record))


def figure(record: Record, name: str | None = None) -> Any:
    """Return one of a record's figures as a matplotlib ``Figure``."""
    from immunis.report.figures import figures_of

    drawn = figures_of(record)
    if not drawn:
        raise InputError(f"{record.name} has no figures: its record holds no curve and no spectra.")
    chosen = next(iter(drawn)) if name is None else name
    if chosen not in drawn:
        raise unknown("figure", chosen, drawn)
    return drawn[chosen](record, "figure")


VIEWS.update(text=as_text, html=as_html, frame=frame, figure=figure)


def _shown(record: Record) -> tuple[list[Table], str]:
    """Return the tables that have rows, and the words; of other kinds only what it is."""
    if record.kind not in SHOWN:
        return [], f"{record.kind}: {record.name} ({record.created}, {record.seconds:.0f} s)"
    makes, words = SHOWN[record.kind]
    checked = record.checked()
    return [table for make in makes if (table := make(checked)).rows], words(checked)


def _html(table: Table) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    head = f"<caption>{escape(table.title)}</caption><thead>{line(table.columns, 'th')}</thead>"
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    return f"<table>{head}<tbody>{body}</tbody></table>{notes}"


def _measure_rows(record: Record) -> list[dict[str, Any]]:
    keys = ("condition_number", "relative_error", "rank", "dimension", "samples")
    return [{"task": role, **{k: record.figures[role].get(k) for k in keys}} for role in ROLES]


def _immunize_rows(record: Record) -> list[dict[str, Any]]:
    f, rows = record.figures, []
    for role in ROLES:
        for key in ("condition_number", "rank"):
            both = {when: f["spectra"][role][when][key] for when in ("before", "after")}
            rows.append({"figure": f"{key}, {role}", **both})
    rows += [{"figure": name, **_ends(f[name])} for name in ("rho", "primary_score")]
    return [*rows, {"figure": "rir", "before": 1.0, "after": f["rir"]["value"]}]


def _ends(found: Any) -> dict[str, Any]:
    return {when: found[when] for when in ("before", "after")}


def _audit_rows(record: Record) -> list[dict[str, Any]]:
    spans = {"score": "score", "above_untrained": "gain", "above_original": "to_original"}
    rows = []
    for attack, outcomes in record.figures["attacks"].items():
        for model, found in outcomes.items():
            row = {"attack": attack, "model": model, "status": found["status"]}
            for key, name in {**spans, "residual_advantage": "residual_advantage"}.items():
                span = found.get(key) or {}
                row |= {name: span.get("mean")}
                row |= {f"{name}_{end}": span.get(end) for end in ("low", "high")}
            rows.append(row | {"notes": "; ".join(noted(found))})
    return rows


def _demo_rows(record: Record) -> list[dict[str, Any]]:
    rows = []
    for method, found in record.figures["methods"].items():
        reads = found["harmful_accuracy"]
        row = {"method": method, "rir": found["rir"]["value"]}
        row |= {f"condition_number_{role}": found["spectra"][role]["condition_number"]
                for role in ROLES}  # fmt: skip
        row |= {"primary_accuracy": found["primary_accuracy"], "ridge": reads["ridge"]}
        rows.append(row | {f"steps_{n}": score for n, score in reads["gradient_descent"].items()})
    return rows


ROWS: dict[str, Callable[[Record], list[dict[str, Any]]]] = {
    "measure": _measure_rows,
    "immunize": _immunize_rows,
    "audit": _audit_rows,
    "demo": _demo_rows,
}
