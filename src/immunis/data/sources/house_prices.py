"""House Prices (Ames, from Kaggle), split and encoded as in the paper's released code.

Inputs are every column but LotArea and SalePrice: 79 of them, the row Id among them.
Missing values become 0, text columns are numbered in sorted order, and columns and targets
are standardised, all within each zoning group separately. Rows of zone RL are harmful.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from immunis.core.errors import InputError
from immunis.core.files import write_text
from immunis.data.sources.common import Tasks, data_file
from immunis.data.task import Task

NAME = "house_prices/train.csv"
SHA256 = "1e18addf81e5e4d347cc17ee6075bbe4a42b7fa26b9e5b063e8f692a5f929d41"
HOW = (
    "Download train.csv of the Kaggle competition 'house-prices-advanced-regression-techniques' "
    f"(sha256 {SHA256}) and put it there, or point --data or $IMMUNIS_DATA at the folder that "
    "holds house_prices/. 'immunis reproduce house-prices --fetch' gets it from OpenML."
)
OPENML, INPUTS, TRAIN, TEST = 42165, 79, 200, 300


def house_prices(folder: str | Path | None = None, rows: int | None = None) -> Tasks:
    """Return LotArea outside zone RL as primary, SalePrice in zone RL as harmful task.

    Args:
        folder: where ``house_prices/train.csv`` lies; see ``data_file``.
        rows: keep the first so many rows of each task (the released code keeps 200).

    The last fifth of each task is test data, the fifth before it in the harmful task is the
    attacker's.
    """
    if rows is not None and rows < 10:
        raise InputError(f"rows={rows}: at least 10 of each task are needed.")
    table = _read(data_file(NAME, folder, HOW))
    zone = table["MSZoning"] == "RL"
    x_p, y_p = _encode(table, ~zone, "LotArea", rows)
    x_h, y_h = _encode(table, zone, "SalePrice", rows)
    end_p, end_h, attacker = len(x_p) * 4 // 5, len(x_h) * 4 // 5, len(x_h) * 3 // 5
    test = (x_h[end_h:], y_h[end_h:])
    return Tasks(
        Task((x_p[:end_p], y_p[:end_p]), (x_p[end_p:], y_p[end_p:]), "LotArea outside RL"),
        Task((x_h[:attacker], y_h[:attacker]), test, "SalePrice in RL"),
        Task((x_h[attacker:end_h], y_h[attacker:end_h]), test, "SalePrice in RL (attacker)"),
    )


def released_split(path: Path) -> Tasks:
    """Split the table as the released code does: the first 200 rows of each zone, 100 to test.

    The attacker's own rows are those of zone RL from the 300th on, which the paper does not use.

    Raises:
        InputError: if the table has not the paper's 79 inputs, or too few rows of a zone.
    """
    table = _read(path)
    zone = table["MSZoning"] == "RL"
    inputs, rows = len(table) - 2, (int((~zone).sum()), int(zone.sum()))
    if inputs != INPUTS or rows[0] < TEST or rows[1] < TEST + TRAIN:
        raise InputError(
            f"{path}: {inputs} input columns, {rows[0]} rows outside zone RL and {rows[1]} inside; "
            f"the paper's table has {INPUTS}, 309 and 1151. {HOW}"
        )
    x_p, y_p = _encode(table, ~zone, "LotArea", None)
    x_h, y_h = _encode(table, zone, "SalePrice", None)
    test = (x_h[TRAIN:TEST], y_h[TRAIN:TEST])
    return Tasks(
        Task((x_p[:TRAIN], y_p[:TRAIN]), (x_p[TRAIN:TEST], y_p[TRAIN:TEST]), "LotArea outside RL"),
        Task((x_h[:TRAIN], y_h[:TRAIN]), test, "SalePrice in RL"),
        Task((x_h[TEST:], y_h[TEST:]), test, "SalePrice in RL (attacker)"),
    )


def find_or_fetch(folder: str | Path | None = None, fetch: bool = False) -> Path:
    """Find the table; where there is none and ``fetch`` asks for it, fetch it from OpenML.

    It goes into ``~/.cache/immunis``. Nothing is fetched where ``folder`` says where to look.

    Raises:
        InputError: naming the places searched, the expected hash, and why the fetch failed.
    """
    try:
        return data_file(NAME, folder, HOW)
    except InputError as missing:
        if folder is not None or not fetch:
            raise
        try:
            return _fetch(Path.home() / ".cache" / "immunis" / NAME)
        except Exception as error:  # no network, no pandas, or OpenML changed: all end here
            raise InputError(f"{missing} Fetching it from OpenML failed too: {error}") from error


def _fetch(path: Path) -> Path:
    """Fetch the table with scikit-learn (which needs pandas for it) and keep it as Kaggle's CSV."""
    from sklearn.datasets import fetch_openml

    frame = fetch_openml(data_id=OPENML, as_frame=True, parser="auto").frame
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, frame.to_csv(index=False, na_rep="NA"))


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV file ({error}). {HOW}") from error
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    missing = {"MSZoning", "LotArea", "SalePrice"} - set(header)
    if missing or not body:
        raise InputError(
            f"{path}: expected the Kaggle table with columns MSZoning, LotArea and SalePrice, "
            f"but found no {' and no '.join(sorted(missing)) or 'rows'}. {HOW}"
        )
    ragged = [i for i, row in enumerate(body, 2) if len(row) != len(header)]
    if ragged:
        raise InputError(f"{path}: line {ragged[0]} is cut short; the file is truncated. {HOW}")
    table = {name: np.array([row[i] for row in body]) for i, name in enumerate(header)}
    for target in ("LotArea", "SalePrice"):
        for line, value in enumerate(table[target], 2):
            if not _is_number(value):
                raise InputError(
                    f"{path}: line {line} has {str(value)!r} in column {target}, which must hold "
                    f"numbers. {HOW}"
                )
    return table


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _encode(
    table: dict[str, np.ndarray], keep: np.ndarray, target: str, rows: int | None
) -> tuple[np.ndarray, np.ndarray]:
    columns = []
    for name, column in table.items():
        if name not in ("LotArea", "SalePrice"):
            columns.append(_standardise(_numbers(column, keep)))
    y = _standardise(table[target][keep].astype(float))
    return np.stack(columns, axis=1)[:rows], y[:rows]


def _numbers(column: np.ndarray, keep: np.ndarray) -> np.ndarray:
    filled = np.where(np.isin(column, ("NA", "")), "0", column)
    try:
        filled.astype(float)  # a column is numeric if it is so in the whole table
    except ValueError:
        return np.unique(filled[keep], return_inverse=True)[1].astype(float)
    return filled[keep].astype(float)


def _standardise(column: np.ndarray) -> np.ndarray:
    spread = column.std(ddof=1)
    return (column - column.mean()) / (spread if spread > 0 else 1.0)
