"""Text and data with named columns, as pairs (inputs, labels) of numbers.

Taken are lists of texts, DataFrames, dicts of columns, Hugging Face data sets, and data sets and
loaders of dicts. Their labels are in a column, found by its name. Data without names passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from immunis.core.errors import InputError
from immunis.data.checks import TAKEN, as_tensor
from immunis.data.text import LENGTH, Tokenizer, pack, tokenizer_of, tokens_of

LABELS = ("label", "labels", "target", "targets", "category", "intent", "class", "y")
TEXTS = ("text", "sentence", "utterance", "query", "question", "content")
IDS, MASK = "input_ids", "attention_mask"
BESIDE = (MASK, "token_type_ids", "special_tokens_mask", "idx", "id")  # of token ids: not inputs


@dataclass(frozen=True)
class Reading:
    """How text is read: the model's tokenizer, and how many tokens a text may have."""

    tokenizer: Any = None
    length: int = LENGTH

    def tokens(self, texts: Sequence[str], where: str) -> Tensor:
        """Return texts as token ids with masks (n, 2, T)."""
        if self.tokenizer is None:
            raise InputError(
                f"{where}: text came without a tokenizer; give the model's own, as in "
                "Task(..., tokenizer=AutoTokenizer.from_pretrained(MODEL)) or tokenizer=FOLDER."
            )
        if strange := [text for text in texts if not isinstance(text, str)]:
            told = f"{type(strange[0]).__name__} came among texts"
            raise InputError(f"{where}: {told}; drop missing texts.")
        if empty := [place for place, text in enumerate(texts) if not text.strip()]:
            raise InputError(f"{where}: text {empty[0]} is empty ({len(empty)} in all); drop it.")
        tokenizer: Tokenizer = tokenizer_of(self.tokenizer)
        return pack(tokens_of(texts, tokenizer, self.length), None, self.length, where)


NUMBERS = Reading()


def as_pair(
    source: Any, where: str, reading: Reading = NUMBERS, known: Sequence[str] | None = None
) -> tuple[Any, Sequence[str] | None]:
    """Return a source as a pair of numbers where it is text or has columns; others as they came.

    The second value names the classes, where labels are strings or the data names them; ``known``
    are those of the training data.
    """
    names = known
    if (columns := _columns_of(source)) is not None:
        found = _listed(columns, where)
        column = label_column(found, where)
        labels, names = found.pop(column), class_names(source, column) or known
        if not _texts(labels):
            labels = as_tensor(_plain(labels), f"{where} {column}")
        inputs = _inputs_of(found, where, reading)
    elif isinstance(source, tuple | list) and len(source) == 2:
        inputs, labels = source
        if (columns := _columns_of(inputs)) is not None:
            inputs = _inputs_of(_listed(columns, where), where, reading)
        elif texts := _texts(inputs):
            inputs = reading.tokens(texts, where)
    else:
        return source, known
    if texts := _texts(labels):
        numbers, names = numbered(texts, names, where)
        labels = torch.tensor(numbers)
    return (inputs, labels), names


def numbered(
    labels: Sequence[str], known: Sequence[str] | None, where: str
) -> tuple[list[int], Sequence[str]]:
    """Return labels as places among their classes, and the classes: ``known``, or those that occur.

    Raises:
        InputError: for a label that is not among the known classes.
    """
    names = sorted(set(labels)) if known is None else known
    if strange := sorted(set(labels) - set(names)):
        raise InputError(f"{where}: label {strange[0]!r} is not among the training classes.")
    place = {name: number for number, name in enumerate(names)}
    return [place[label] for label in labels], names


def label_column(columns: Iterable[str], where: str) -> str:
    """Return the name of the column that holds the labels; refuse data without one."""
    label = next((name for name in LABELS if name in columns), None)
    if label is None:
        raise InputError(
            f"{where}: no column of labels among {', '.join(columns) or 'none'}; expected one "
            f"named {', '.join(LABELS)}. Rename it, or give (inputs, labels)."
        )
    return label


def class_names(source: Any, column: str) -> Sequence[str] | None:
    """Return the names of classes that a Hugging Face data set keeps beside numbered labels."""
    features = getattr(source, "features", None)
    return getattr(features.get(column), "names", None) if isinstance(features, Mapping) else None


def _columns_of(source: Any) -> Mapping[str, Any] | None:
    """Return data as columns by name; None for data that has no names.

    Of a data set or loader, text alone is read into memory.
    """
    if isinstance(source, Mapping):
        return source
    if hasattr(source, "columns") and hasattr(source, "to_dict"):  # a DataFrame
        return {str(name): source[name].to_numpy() for name in source.columns}
    if hasattr(source, "column_names") and hasattr(source, "features"):  # of Hugging Face
        return {name: source[name][:] for name in source.column_names}
    if not isinstance(source, DataLoader | Dataset) or not _is_text(_sample(source)):
        return None
    found: dict[str, list[Any]] = {}  # rows, since batches may be padded unlike
    loaded = isinstance(source, DataLoader)
    rows: Any = source
    for batch in rows if loaded else (rows[row] for row in range(len(rows))):
        named = batch if isinstance(batch, Mapping) else {"text": batch[0], "label": batch[1]}
        for name, values in named.items():
            found.setdefault(name, []).extend(values if loaded else [values])
    return found


def _sample(source: Any) -> Any:
    """Return the first sample, without disturbing a loader's order; None if it cannot be read."""
    data = source.dataset if isinstance(source, DataLoader) else source
    with suppress(Exception):  # a data set may fail in any way; it is read, and reported, later
        return data[0]
    return None


def _is_text(sample: Any) -> bool:
    """Return True for a sample that is, or holds, text or token ids."""
    if isinstance(sample, Mapping):
        return IDS in sample or any(isinstance(sample.get(name), str) for name in TEXTS)
    return isinstance(sample, tuple | list) and len(sample) == 2 and isinstance(sample[0], str)


def _listed(columns: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return columns of equal length; refuse others."""
    found = {str(name): values for name, values in columns.items()}
    sizes = {name: len(values) for name, values in found.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise InputError(f"{where}: columns of unequal length ({told}).")
    return found


def _inputs_of(columns: dict[str, Any], where: str, reading: Reading) -> Any:
    """Return the inputs in columns: token ids, text, one array, or the columns of a table."""
    if IDS in columns:
        return pack(columns[IDS], columns.get(MASK), reading.length, where)
    columns = {name: values for name, values in columns.items() if name not in BESIDE}
    texts = [name for name in (*TEXTS, *columns) if _texts(columns.get(name, ()))]
    named = [name for name in texts if name in TEXTS]
    if texts and (named or len(columns) == 1):
        return reading.tokens(_texts(columns[texts[0]]), where)
    if texts:
        raise InputError(
            f"{where}: column {texts[0]!r} holds strings among others. For text name it 'text'; of "
            "a table encode categories as numbers first."
        )
    if not columns:
        raise InputError(f"{where}: no column of inputs; taken are {TAKEN}.")
    arrays = [as_tensor(_plain(values), f"{where} {name}") for name, values in columns.items()]
    if len(arrays) == 1:
        return arrays[0] if arrays[0].ndim > 1 else arrays[0][:, None]
    if any(array.ndim != 1 for array in arrays):
        told = ", ".join(columns)
        raise InputError(f"{where}: several inputs ({told}); a model is given one. Keep one.")
    kind = torch.float64 if any(a.dtype == torch.float64 for a in arrays) else torch.float32
    exact = all(a.is_floating_point() for a in arrays)
    return torch.stack([array.to(kind if exact else torch.float64) for array in arrays], 1)


def _plain(values: Any) -> Any:
    """Return a column as one array or tensor."""
    if isinstance(values, list) and values and isinstance(values[0], Tensor):
        return torch.stack(values)
    return values


def _texts(values: Any) -> list[str]:
    """Return a column of strings as a list; empty for others."""
    if isinstance(values, np.ndarray):
        values = values.tolist() if values.dtype.kind in "OUT" else []
    if hasattr(values, "tolist") and not isinstance(values, Tensor):  # a Series
        values = values.tolist()
    listed = isinstance(values, list | tuple) and len(values) > 0
    return list(values) if listed and isinstance(values[0], str) else []
