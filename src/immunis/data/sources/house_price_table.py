"""House Prices (Ames, from Kaggle), split and encoded as in the paper's released code.

Inputs are the 79 columns other than LotArea and SalePrice; the row Id is one of them. Missing
values become 0 and text is numbered in sorted order. As in pandas 2, which the released code
requires, "None" (of MasVnrType) counts as missing. Columns and targets are standardised within
each group of zones. Rows of zone RL are harmful.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from immunis.core.errors import InputError
from immunis.core.files import write_text
from immunis.core.places import cache_folder, find_data
from immunis.data.task import Task, Tasks

NAME = "house_prices/train.csv"
SHA256 = "1e18addf81e5e4d347cc17ee6075bbe4a42b7fa26b9e5b063e8f692a5f929d41"
HOW = (
    "Download train.csv of the Kaggle competition 'house-prices-advanced-regression-techniques' "
    f"(sha256 {SHA256}) and put it there, or point --data or $IMMUNIS_DATA at the folder that "
    "holds house_prices/. 'immunis reproduce house-prices --fetch' gets it from OpenML."
)
OPENML, INPUTS, TRAIN, TEST = 42165, 79, 200, 300
TARGETS = ("LotArea", "SalePrice")
MISSING = ("NA", "", "None")
Table = dict[str, np.ndarray]
Rows = tuple[np.ndarray, ...]  # inputs and targets


def house_prices(folder: str | Path | None = None, rows: int | None = None) -> Tasks:
    """Return LotArea outside zone RL as primary, SalePrice in zone RL as harmful task.

    The last fifth of each task is test data. The fifth before it in the harmful task is the
    attacker's. With ``rows``, each task keeps only its first rows (the released code keeps 200).
    """
    if rows is not None and rows < 10:
        raise InputError(f"rows={rows}: at least 10 of each task are needed.")
    primary, harmful = _zones(read_table(find_data(folder, HOW, NAME)), rows)
    train, test = _parts(primary, len(primary[1]) * 4 // 5)
    defender, attacker, scored = _parts(harmful, *(len(harmful[1]) * n // 5 for n in (3, 4)))
    return _tasks(train, test, defender, attacker, scored)


def released_split(path: Path) -> Tasks:
    """Split the table as the released code does: 200 rows of each zone to train, 100 to test.

    The attacker's rows are those of zone RL from the 300th on, which the paper does not use.
    """
    table = read_table(path)
    inputs, inside = len(table) - len(TARGETS), int((table["MSZoning"] == "RL").sum())
    outside = len(table["MSZoning"]) - inside
    if inputs != INPUTS or outside < TEST or inside < TEST + TRAIN:
        came = f"{inputs} input columns, {outside} rows outside zone RL and {inside} inside"
        raise InputError(f"{path}: {came}; the paper's table has {INPUTS}, 309 and 1151. {HOW}")
    primary, harmful = _zones(table)
    (train, test, _), (defender, scored, attacker) = (
        _parts(zone, TRAIN, TEST) for zone in (primary, harmful)
    )
    return _tasks(train, test, defender, attacker, scored)


def _parts(rows: Rows, *ends: int) -> list[Rows]:
    return list(zip(*(np.split(values, ends) for values in rows), strict=True))


def _tasks(train: Rows, test: Rows, defender: Rows, attacker: Rows, scored: Rows) -> Tasks:
    return Tasks(
        Task(train, test, "LotArea outside RL"),
        Task(defender, scored, "SalePrice in RL"),
        Task(attacker, scored, "SalePrice in RL (attacker)"),
    )


def find_or_fetch(folder: str | Path | None = None, fetch: bool = False) -> Path:
    """Return the table's path; with ``fetch``, get a missing table from OpenML.

    The table goes to ``~/.cache/immunis``. A missing table in a given ``folder`` is not fetched.
    """
    try:
        return find_data(folder, HOW, NAME)
    except InputError as missing:
        if folder is not None or not fetch:
            raise
        try:
            from sklearn.datasets import fetch_openml  # needs pandas for a frame

            frame = fetch_openml(data_id=OPENML, as_frame=True, parser="auto").frame
        except Exception as error:  # no network, no pandas, or OpenML changed
            raise InputError(f"{missing} Fetching it from OpenML failed too: {error}") from error
        path = cache_folder() / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_text(path, frame.to_csv(index=False, na_rep="NA"))


def read_table(path: Path) -> Table:
    """Return the columns of the CSV file as text, checked to be the Kaggle table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *body = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV file ({error}). {HOW}") from error
    missing = {"MSZoning", *TARGETS} - set(header)
    if missing or not body:
        found = f"found no {' and no '.join(sorted(missing)) or 'rows'}"
        raise InputError(f"{path}: expected the Kaggle table, but {found}. {HOW}")
    for line, row in enumerate(body, 2):
        if len(row) != len(header):
            raise InputError(f"{path}: line {line} is cut short; the file is truncated. {HOW}")
        for target in TARGETS:
            value = row[header.index(target)]
            if not value.replace(".", "", 1).isdecimal():
                wrong = f"line {line} has {value!r} in column {target}"
                raise InputError(f"{path}: {wrong}, which must hold numbers. {HOW}")
    return dict(zip(header, np.array(body).T, strict=True))


def _zones(table: Table, rows: int | None = None) -> tuple[Rows, Rows]:
    """Return the rows outside zone RL, and those inside."""
    zone = table["MSZoning"] == "RL"
    return encode(table, ~zone, "LotArea", rows), encode(table, zone, "SalePrice", rows)


def encode(table: Table, keep: np.ndarray, target: str, rows: int | None) -> Rows:
    """Return the standardised inputs and targets of the first ``rows`` of the kept rows."""
    columns = [column for name, column in table.items() if name not in TARGETS]
    inputs = [_standardised(_numbers(column, keep)) for column in columns]
    return np.stack(inputs, axis=1)[:rows], _standardised(table[target][keep].astype(float))[:rows]


def _numbers(column: np.ndarray, keep: np.ndarray) -> np.ndarray:
    filled = np.where(np.isin(column, MISSING), "0", column)
    try:
        return filled.astype(float)[keep]  # the whole column decides whether it is numeric
    except ValueError:
        return np.unique(filled[keep], return_inverse=True)[1].astype(float)


def _standardised(column: np.ndarray) -> np.ndarray:
    deviation = column.std(ddof=1)
    return (column - column.mean()) / (deviation if deviation > 0 else 1.0)
