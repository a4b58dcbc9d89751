"""The ledger of final audits: a line for each time that somebody opened a benchmark's final rows.

It is a file of JSON lines, ``$IMMUNIS_LEDGER`` or ``~/.local/share/immunis/final-audits.jsonl``.
A line keeps short hashes of the rows that were opened: whoever drops a row of a benchmark, or
splits it anew, has opened the others before. It counts what this user did here. It cannot count
what others did elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from immunis.core.errors import InputError, OutputError
from immunis.core.files import make_folder, write_text
from immunis.core.locks import locked

VARIABLE = "IMMUNIS_LEDGER"
MOST = 4096  # rows of a line, those of the smallest hashes: sets that overlap keep the same ones


def ledger() -> Path:
    """Return the ledger's path.

    Raises:
        InputError: for a user without a home folder.
    """
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser()
    try:
        return Path.home() / ".local" / "share" / "immunis" / "final-audits.jsonl"
    except RuntimeError as error:
        raise InputError(
            "this user has no home folder, where the ledger of final audits is kept. Set "
            f"{VARIABLE} to a file."
        ) from error


def enter(key: str, benchmark: str, rows: Iterable[int], facts: Mapping[str, Any]) -> int:
    """Enter a final audit; return how many opened some of its rows, this one included.

    An audit that is entered already, as one that is continued, is not entered again.

    Args:
        key: the hash of everything that decides the audit.
        benchmark: the fingerprint of the harmful test data.
        rows: 128-bit hashes of the rows that it opens (``data.checks.hash_rows``).
        facts: what else its line says.

    Raises:
        OutputError: if the ledger cannot be written.
        InputError: if it holds something else.
    """
    path, opened = ledger(), [f"{value >> 80:012x}" for value in sorted(rows)[:MOST]]
    try:
        make_folder(path.parent)
        with locked(path):
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            keys = [
                entry["key"]
                for entry in _entries(text, path)
                if entry["benchmark"] == benchmark or not entry["rows"].isdisjoint(opened)
            ]
            if key not in keys:
                keys.append(key)
                now = datetime.now(UTC).isoformat(timespec="seconds")
                entry = {"key": key, "benchmark": benchmark, "created": now, **facts}
                line = json.dumps({**entry, "rows": opened})
                write_text(path, f"{text}{line}\n")
    except (OSError, OutputError) as error:
        raise OutputError(
            f"the ledger of final audits {path} cannot be written: {error} A final audit must be "
            f"counted: set {VARIABLE} to a file that can be written."
        ) from error
    return len(set(keys))


def _entries(text: str, path: Path) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            rows = frozenset(entry.get("rows", ()))  # the first lines have none
            found.append({"key": entry["key"], "benchmark": entry["benchmark"], "rows": rows})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number} is no entry of the ledger of final audits. Mend the line, "
                f"or set {VARIABLE} to another file."
            ) from error
    return found
