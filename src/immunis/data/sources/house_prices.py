"""House Prices (Ames, from Kaggle), split and encoded as in the paper's released code.

Inputs are the 79 columns other than LotArea and SalePrice; the row Id is one of them. Missing
values become 0 and text is numbered in sorted order. Columns and targets are standardised within
each group of zones. Rows of zone RL are harmful.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from immunis.core.errors import InputError
from immunis.core.files import write_text
from immunis.data.sources.common import Tasks, find_data
from immunis.data.task import Task

NAME = "house_prices/train.csv"
SHA256 = "1e18addf81e5e4d347cc17ee6075bbe4a42b7fa26b9e5b063e8f692a5f929d41"
HOW = (
    "Download train.csv of the Kaggle competition 'house-prices-advanced-regression-techniques' "
    f"(sha256 {SHA256}) and put it there, or point --data or $IMMUNIS_DATA at the folder that "
    "holds house_prices/. 'immunis reproduce house-prices --fetch' gets it from OpenML."
)
OPENML, INPUTS, TRAIN, TEST = 42165, 79, 200, 300
TARGETS = ("LotArea", "SalePrice")
Rows = tuple[np.ndarray, np.ndarray]
Table = dict[str, np.ndarray]


def house_prices(folder: str | Path | None = None, rows: int | None = None) -> Tasks:
    """Return LotArea outside zone RL as primary, SalePrice in zone RL as harmful task.

    The last fifth of each task is test data. The fifth before it in the harmful task is the
    attacker's.

    Args:
        folder: holds ``house_prices/train.csv``; see ``find_data``.
        rows: keep only the first rows of each task (the released code keeps 200).
    """
    if rows is not None and rows < 10:
        raise InputError(f"rows={rows}: at least 10 of each task are needed.")
    primary, harmful = _zones(read_table(find_data(folder, HOW, NAME)), rows)
    end_p, end_h = (len(y) * 4 // 5 for _, y in (primary, harmful))
    own = len(harmful[1]) * 3 // 5
    cuts = [slice(end_p), slice(end_p, None), slice(own), slice(end_h, None), slice(own, end_h)]
    return _tasks(primary, harmful, cuts)


def released_split(path: Path) -> Tasks:
    """Split the table as the released code does: 200 rows of each zone to train, 100 to test.

    The attacker's rows are those of zone RL from the 300th on, which the paper does not use.
    """
    table = read_table(path)
    inputs, inside = len(table) - len(TARGETS), int((table["MSZoning"] == "RL").sum())
    outside = len(table["MSZoning"]) - inside
    if inputs != INPUTS or outside < TEST or inside < TEST + TRAIN:
        raise InputError(
            f"{path}: {inputs} input columns, {outside} rows outside zone RL and {inside} inside; "
            f"the paper's table has {INPUTS}, 309 and 1151. {HOW}"
        )
    primary, harmful = _zones(table)
    train, test = slice(TRAIN), slice(TRAIN, TEST)
    return _tasks(primary, harmful, [train, test, train, test, slice(TEST, None)])


def _tasks(primary: Rows, harmful: Rows, cuts: Sequence[slice]) -> Tasks:
    """Cut out primary train and test, harmful train and test, and the attacker's rows."""
    train_p, test_p = ((primary[0][cut], primary[1][cut]) for cut in cuts[:2])
    train_h, test_h, own = ((harmful[0][cut], harmful[1][cut]) for cut in cuts[2:])
    return Tasks(
        Task(train_p, test_p, "LotArea outside RL"),
        Task(train_h, test_h, "SalePrice in RL"),
        Task(own, test_h, "SalePrice in RL (attacker)"),
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
        path = Path.home() / ".cache" / "immunis" / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_text(path, frame.to_csv(index=False, na_rep="NA"))


def _zones(table: Table, rows: int | None = None) -> tuple[Rows, Rows]:
    """Return inputs and targets of the rows outside zone RL and of those inside."""
    zone = table["MSZoning"] == "RL"
    return encode(table, ~zone, "LotArea", rows), encode(table, zone, "SalePrice", rows)


def read_table(path: Path) -> Table:
    """Return the columns of the CSV file as text, checked to be the Kaggle table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV file ({error}). {HOW}") from error
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    missing = {"MSZoning", *TARGETS} - set(header)
    if missing or not body:
        raise InputError(
            f"{path}: expected the Kaggle table with columns MSZoning, LotArea and SalePrice, "
            f"but found no {' and no '.join(sorted(missing)) or 'rows'}. {HOW}"
        )
    ragged = [i for i, row in enumerate(body, 2) if len(row) != len(header)]
    if ragged:
        raise InputError(f"{path}: line {ragged[0]} is cut short; the file is truncated. {HOW}")
    table = {name: np.array([row[i] for row in body]) for i, name in enumerate(header)}
    for target in TARGETS:
        for line, value in enumerate(table[target].tolist(), 2):
            if not _is_number(value):
                raise InputError(
                    f"{path}: line {line} has {value!r} in column {target}, which must hold "
                    f"numbers. {HOW}"
                )
    return table


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def encode(table: Table, keep: np.ndarray, target: str, rows: int | None) -> Rows:
    """Return the standardised inputs and targets of the first ``rows`` of the kept rows."""
    inputs = [
        _standardised(_numbers(column, keep))
        for name, column in table.items()
        if name not in TARGETS
    ]
    y = _standardised(table[target][keep].astype(float))
    return np.stack(inputs, axis=1)[:rows], y[:rows]


def _numbers(column: np.ndarray, keep: np.ndarray) -> np.ndarray:
    filled = np.where(np.isin(column, ("NA", "")), "0", column)
    try:
        filled.astype(float)  # the whole column decides whether it is numeric
    except ValueError:
        return np.unique(filled[keep], return_inverse=True)[1].astype(float)
    return filled[keep].astype(float)


def _standardised(column: np.ndarray) -> np.ndarray:
    deviation = column.std(ddof=1)
    return (column - column.mean()) / (deviation if deviation > 0 else 1.0)
