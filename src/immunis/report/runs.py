"""The records below a folder, of one run or of all, and which of them are about the same models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from immunis.core.errors import ImmunisError, InputError
from immunis.core.records import Record

NAME = "record.json"  # under which commands write a record
FINAL = "record-final.json", "card-final.html"  # and those of a final audit, beside it
SIDE_BY_SIDE = ("audit", "immunize")  # kinds of records of which one card may hold several


def record_files(folder: str | Path) -> list[Path]:
    """Return the files below a folder that may hold a record, hidden folders left out.

    They are called ``record.json``, of a final audit ``record-final.json``; where none is, they are
    the JSON files of the folder itself.
    """
    top = Path(folder)
    found = (path for name in (NAME, FINAL[0]) for path in top.rglob(name))
    named = [path for path in found if not _hidden(path.relative_to(top))]
    return sorted(named) or sorted(path for path in top.glob("*.json") if path.is_file())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def found_records(folder: str | Path) -> Iterator[tuple[Path, Record | str]]:
    """Yield each file with its record, or with the reason why it cannot be read."""
    for path in record_files(folder):
        try:
            yield path, Record.load(path)
        except ImmunisError as error:
            yield path, str(error)


def collected(paths: Sequence[str | Path], kinds: Sequence[str]) -> list[Record]:
    """Return the records of files and folders, for one card.

    Of a folder these are its audits and immunizations, each once, or else the first other record
    that has a card. A file that is no record is refused if it was named, and passed over in a
    folder.

    Raises:
        InputError: for a folder without a record that has a card.
    """
    found: list[Record] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(Record.load(path))
            continue
        known = [record for _, record in found_records(path) if isinstance(record, Record)]
        able = {record.digest(): record for record in known if record.kind in kinds}
        pairs = [record for record in able.values() if record.kind in SIDE_BY_SIDE]
        if not able:
            raise InputError(
                f"{path} holds no record with a card; expected a {NAME} of {', '.join(kinds)}."
            )
        found += pairs or list(able.values())[:1]
    return found


def same_models(one: Record, other: Record) -> bool:
    """Return True if two audits are of the same models, on the same data of both tasks."""

    def subject(record: Record) -> object:
        data = [record.data[role] for role in ("primary", "attacker")]
        rows = record.figures["models"].items()
        models = sorted((name, repr(row["primary"])) for name, row in rows)
        return [(d["train"], d["test"]) for d in data], models, record.settings["original"]

    return subject(one) == subject(other)


def subjects(records: Sequence[Record]) -> list[list[Record]]:
    """Return records by what they are about, audits first.

    Audits of the same models belong together, and an immunization to the audit of its weights, if
    there is one only.
    """
    found: list[list[Record]] = []
    for record in sorted(records, key=lambda record: record.kind != "audit"):
        fitting = [each for each in found if belongs(record, each[0])]
        if len(fitting) == 1:
            fitting[0].append(record)
        else:
            found.append([record])
    return found


def belongs(record: Record, first: Record) -> bool:
    """Return True if a record is about the models of an audit.

    An immunization is, if the audit attacked the weights that it made. Records of version 0.1 hold
    no hash of weights; theirs is told by the primary data.
    """
    if first.kind != "audit":
        return False
    if record.kind == "audit":
        return same_models(record, first)
    data = (each.data["primary"] for each in (record, first))
    if record.kind != "immunize" or len({(d["train"], d["test"]) for d in data}) > 1:
        return False
    own, attacked = record.figures.get("weights"), weights_of(first)
    return own is None or not attacked or own in attacked


def weights_of(audit: Record) -> set[str]:
    """Return the hashes of all models of an audit, every training of each."""
    models = audit.figures["models"].values()
    rows = [row for model in models for row in (model, *model.get("variants", ()))]
    return {row["weights"] for row in rows if "weights" in row}


def audited(record: Record, records: Sequence[Record]) -> bool:
    """Return True if an audit of a record's models is among some records."""
    return any(each[0].kind == "audit" for each in subjects(records) if record in each)
