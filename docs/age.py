"""What a page says above a table of a record that was made before something it should have."""

from __future__ import annotations

from pathlib import Path

from immunis.core.records import Record
from immunis.report.markup import Table

# commits of records that are not in the history: they were rewritten before they were published
GONE = (
    "057272bb4", "11afc8ddf", "16c98ac21", "18bd10ef0", "2a8a38da7",
    "498833e46", "72503b52e", "bf8a02d12", "eee302be7",
)  # fmt: skip
EARLIER = "validation rows were stratified, test rows were halved and the newest attacks existed"


def old(record: Record) -> bool:
    """Return True for an audit without test halves or factors: it is of version 0.1."""
    return record.kind == "audit" and not {"scored", "factors"} <= record.figures.keys()


def gone(record: Record) -> str:
    """Return what the history lacks of the tree that made a record; nothing if it has all."""
    commit = record.commit or ""
    if commit.startswith(GONE):
        return ", not in the history"
    return ", with changes that were not committed" * commit.endswith("+")


def note(records: list[Record]) -> str:
    """Return the line above a table of some records; nothing for records of today."""
    said = []
    if any(map(old, records)):
        last = max(record.created for record in records)[:10]
        said.append(f"Made by {last}, before {EARLIER} ({commits(records)}).")
    elif any(map(gone, records)):
        said.append(f"Made at {commits(records)}.")
    parts = records[0].settings.items() if records[0].name == "faults" else ()
    unnamed = [name for name, part in parts if isinstance(part, dict) and not part.get("commit")]
    if unnamed:
        said.append(f"These parts name no commit: {', '.join(unnamed)}.")
    return f"*{' '.join(said)}*\n\n" if said else ""


def commits(records: list[Record]) -> str:
    """Return the commits of records, and which of them are gone."""
    every = {f"`{str(r.commit)[:7]}`{gone(r)}": None for r in records}
    return f"commit{'s' * (len(every) > 1)} {', '.join(every)}"


def older_table(folder: Path) -> Table:
    """One row a commit of older audits, and of records whose commit is gone."""
    rows: dict[tuple[str, str], list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        record = Record.load(path)
        if old(record) or gone(record):
            rows.setdefault((record.created[:10], commits([record])), []).append(path.stem)
    found = [[day, commit, ", ".join(names)] for (day, commit), names in sorted(rows.items())]
    return Table("older", ["made", "at", "records"], found)
