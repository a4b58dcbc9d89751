"""Files of labelled texts: CSV, JSON lines, JSON or parquet, and which of their rows count."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immunis.core.errors import InputError, unknown
from immunis.core.files import check_unpacked
from immunis.core.places import find_data
from immunis.core.settings import build, require
from immunis.data.columns import LABELS, TEXTS

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
PARTS = {"train": ("train",), "test": ("test", "val", "valid", "validation", "dev")}
MOST = 1 << 20  # characters of one field
Rows = list[tuple[str, str]]  # texts and their labels


@dataclass(frozen=True)
class TextFiles:
    """One task's texts: where they are, and which of them count.

    Attributes:
        file: a file of training rows, a JSON object with rows by split (``train``, ``test``), or
            a folder with ``train.*`` and ``test.*``.
        test: the file of test rows, where ``file`` has training rows only.
        text, label: the columns; by default found by their names.
        groups: a JSON object of lists of labels, by the name of the group.
        keep, drop: labels, or groups of labels, to keep alone or to leave out.
        name: what the task is called; by default after its file.
    """

    file: str
    test: str | None = None
    text: str | None = None
    label: str | None = None
    groups: str | None = None
    keep: Sequence[str] = ()
    drop: Sequence[str] = ()
    name: str | None = None

    @property
    def called(self) -> str:
        """What the task is called."""
        return self.name or Path(self.file).stem.removesuffix("_train")


def checked_files(table: Mapping[str, Any]) -> TextFiles:
    """Return a table of a recipe as ``TextFiles``; refuse other keys and types."""
    require("file" in table, "each task of text needs a file, as in primary = { file = 'a.csv' }.")
    return build(TextFiles, table, "a task of text")


def read_texts(files: TextFiles, split: str, folder: str | None = None) -> Rows:
    """Return the rows of one split (``"train"`` or ``"test"``) whose labels count.

    Paths start in ``folder``, or where ``core.places.find_data`` looks.
    """

    def at(name: str) -> Path:
        return find_data(folder, "Pass --data, or set $IMMUNIS_DATA.", name)

    counts = _filter(files, at)
    found = [(text, label) for text, label in _read(files, split, at) if counts(label)]
    require(len(found) > 1, f"{files.called}: {len(found)} {split} texts are left; keep more.")
    return found


def _filter(files: TextFiles, at: Callable[[str], Path]) -> Callable[[str], bool]:
    """Return what tells the labels to keep."""
    groups = {} if files.groups is None else _json(at(files.groups))
    lists = isinstance(groups, dict) and all(isinstance(v, list) for v in groups.values())
    if not lists:
        raise InputError(f"{files.groups}: expected a JSON object of lists of labels.")

    def labels(names: Sequence[str]) -> set[str]:
        return {str(label) for name in names for label in groups.get(name, [name])}

    for name in (*files.keep, *files.drop):
        if files.groups is not None and name not in groups and name not in labels([*groups]):
            raise unknown(f"label or group of {files.groups}", name, groups)
    keep, drop = labels(files.keep), labels(files.drop)
    return lambda label: label not in drop and (not keep or label in keep)


def _read(files: TextFiles, split: str, at: Callable[[str], Path]) -> Rows:
    """Return the rows of one split."""
    place = at(files.file if files.test is None or split == "train" else files.test)
    if place.is_dir():
        names = [f"{name}{suffix}" for name in PARTS[split] for suffix in SUFFIXES]
        inside = next((place / name for name in names if (place / name).is_file()), None)
        if inside is None:
            raise InputError(f"{place} holds no {split} texts; expected {names[0]} or the like.")
        place = inside
    elif split == "test" and files.test is None and place.suffix != ".json":
        raise InputError(f"{place} has training texts only; name the file of test texts: test = …")
    found = _columns(place, split if place == at(files.file) else None)
    if not found:
        raise InputError(f"{place} holds no rows.")
    text, label = _named(place, found[0], files)
    return [(row[text], str(row[label])) for row in _checked(place, found, text, label)]


def _columns(path: Path, split: str | None) -> list[dict[str, Any]]:
    """Return the rows of a file as dicts; ``split`` is taken of a JSON object, if it is one."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a file of texts ({', '.join(SUFFIXES)}).")
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as table:
                meta = table.metadata
                groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
                check_unpacked(path, sum(group.total_byte_size for group in groups))
                return table.read().to_pylist()
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix in (".csv", ".tsv"):
                csv.field_size_limit(MOST)
                return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
            found = [json.loads(x) for x in file if x.strip()] if path.suffix == ".jsonl" else None
    except InputError:
        raise
    except Exception as error:  # pyarrow raises anything on foreign bytes
        raise InputError(f"{path} cannot be read: {str(error)[:200]}.") from error
    found = _json(path) if found is None else found
    if isinstance(found, dict) and split is not None:
        chosen = next((name for name in PARTS[split] if name in found), None)
        if chosen is None:
            raise InputError(
                f"{path} holds {', '.join(found)}; expected {' or '.join(PARTS[split])}."
            )
        found = found[chosen]
    return [row if isinstance(row, dict) else _pair(path, row) for row in found]


def _pair(path: Path, row: Any) -> dict[str, Any]:
    if not isinstance(row, list) or len(row) != 2:
        raise InputError(
            f"{path}: a row is {str(row)[:60]!r}; expected [text, label] or an object."
        )
    return dict(zip(("text", "label"), row, strict=True))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}.") from error


def _named(path: Path, row: Mapping[str, Any], files: TextFiles) -> tuple[str, str]:
    """Return the columns of texts and of labels: as given, or by their names."""
    found = []
    for what, given, names in (("text", files.text, TEXTS), ("label", files.label, LABELS)):
        column = given or next((name for name in names if name in row), None)
        if column is None or column not in row:
            raise InputError(
                f"{path} has the columns {', '.join(map(str, row))}; none is "
                f"{given or f'called {names[0]}'}. Name it: {what} = 'COLUMN'."
            )
        found.append(column)
    return found[0], found[1]


def _checked(path: Path, rows: list[dict[str, Any]], text: str, label: str) -> list[dict[str, Any]]:
    """Return the rows; refuse one without a text or a label."""
    for place, row in enumerate(rows):
        if not isinstance(row.get(text), str) or not row[text].strip() or row.get(label) is None:
            raise InputError(f"{path}: row {place} has no {text} or no {label}; drop it.")
    return rows
