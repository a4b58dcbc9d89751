"""Text as one tensor of whole numbers: token ids and their mask, stacked (n, 2, T).

So everything that takes arrays takes text: hashing, slicing, shipping to workers. Tokens begin at
the left, ids under the mask are zero, and T is the same for all tasks of one experiment. A model
runs without the columns that are padding in every row of its batch.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from immunis.core.errors import InputError, SettingsError
from immunis.core.extras import need
from immunis.core.places import absent, may_download, packaged
from immunis.core.state import alone

LENGTH = 128  # default number of tokens of a text
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
Tokenizer = Callable[..., Mapping[str, Any]]


def is_packed(inputs: Tensor) -> bool:
    """Return True for a tensor of the shape and kind of packed text."""
    return inputs.ndim == 3 and inputs.shape[1] == 2 and inputs.dtype in (torch.int32, torch.int64)


def is_text(inputs: Tensor) -> bool:
    """Return True for packed text: the second half is a mask of zeros and ones."""
    return is_packed(inputs) and bool(((inputs[:, 1] == 0) | (inputs[:, 1] == 1)).all())


def pack(
    ids: Iterable[Sequence[int] | Tensor],
    masks: Iterable[Sequence[int] | Tensor] | None = None,
    length: int = LENGTH,
    where: str = "text",
) -> Tensor:
    """Return token ids of texts, with their masks, as one tensor (n, 2, length).

    Without ``masks`` every id counts. Padding, wherever it is, moves to the right.

    Raises:
        InputError: for a text without tokens, or with more than ``length``.

    >>> pack([[7, 8], [9]], length=3).tolist()
    [[[7, 8, 0], [1, 1, 0]], [[9, 0, 0], [1, 0, 0]]]
    """
    rows = [torch.as_tensor(row) for row in ids]
    if masks is not None:
        kept = [torch.as_tensor(mask).bool() for mask in masks]
        for row, mask in zip(rows, kept, strict=True):
            if row.shape != mask.shape:
                came = f"ids of shape {tuple(row.shape)} and a mask of shape {tuple(mask.shape)}"
                raise InputError(f"{where}: {came}; they must agree.")
        rows = [row[mask] for row, mask in zip(rows, kept, strict=True)]
    found = torch.zeros(len(rows), 2, length, dtype=torch.int32)
    for place, row in enumerate(rows):
        if row.ndim != 1 or not len(row):
            raise InputError(f"{where}: text {place} has no tokens; drop it.")
        if len(row) > length:
            raise InputError(
                f"{where}: text {place} has {len(row)} tokens; at most {length} were expected. "
                "Truncate it, or give max_length."
            )
        found[place, 0, : len(row)], found[place, 1, : len(row)] = row, 1
    return found


def unpacked(inputs: Tensor, padding: int | None = None) -> tuple[Tensor, Tensor]:
    """Return ids and mask (n, T), up to the longest text; ``padding`` is the id under the mask."""
    ids, mask = inputs.long().unbind(1)
    longest = max(1, int(mask.sum(1).max())) if len(mask) else 1
    ids, mask = ids[:, :longest], mask[:, :longest]
    return (ids if padding is None else ids.masked_fill(mask == 0, padding)), mask


def here() -> dict[str, bool]:
    """Return how transformers is asked for a model: no code from elsewhere, and no download."""
    return {"trust_remote_code": False, "local_files_only": not may_download()}


@contextmanager
def no_bar() -> Iterator[None]:
    """Let transformers load weights without a progress bar of its own."""
    from transformers.utils import logging

    with alone():
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                logging.enable_progress_bar()


def not_here(name: str, error: OSError) -> Exception:
    """Return the error for a transformers model that is not on this machine, or cannot be read."""
    if Path(name).exists() or not HUB_NAME.fullmatch(name):
        return SettingsError(f"transformers cannot read {name!r}: {str(error)[:300]}")
    place = f"put it into a folder and name that, or run: hf download {name}"
    return absent(f"{name} of transformers", f"https://huggingface.co/{name}", place)


def tokenizer_of(given: Any) -> Tokenizer:
    """Return a tokenizer: as given, or of a model's folder, ``package:NAME/PATH`` or hub name."""
    if not isinstance(given, str):
        if callable(given):
            return given
        raise SettingsError(
            f"tokenizer is of type {type(given).__name__}; expected one of transformers, or the "
            "folder or name of a model."
        )
    transformers = need("transformers")
    place = str(packaged(given) or given)
    try:
        return transformers.AutoTokenizer.from_pretrained(place, **here())
    except OSError as error:
        found = not_here(place, error)
        if isinstance(found, InputError):
            raise found from error
        raise SettingsError(f"{given!r} holds no tokenizer: {str(error)[:300]}") from error
    except (ValueError, KeyError, RuntimeError) as error:
        raise SettingsError(f"{given!r} holds no tokenizer: {str(error)[:300]}") from error


def tokens_of(texts: Sequence[str], tokenizer: Tokenizer, length: int) -> list[list[int]]:
    """Return the token ids of texts, cut at ``length``."""
    found = tokenizer(list(texts), truncation=True, max_length=length, padding=False)
    return [list(row) for row in found["input_ids"]] if len(texts) else []


def normal(text: str) -> str:
    """Return letters and digits of a text, without case and accents: equal for copies.

    >>> normal("  What’s  UP, José?")
    'what s up jose'
    """
    plain = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return " ".join(re.findall(r"\w+", letters))
