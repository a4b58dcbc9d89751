"""Text tasks from files: which text goes to the defender, the attacker and the test."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.core.settings import whole
from immunis.data.columns import numbered
from immunis.data.sources.text_files import Rows, checked_files, read_texts
from immunis.data.task import Task, Tasks, by_turns
from immunis.data.text import LENGTH, normal, pack, tokenizer_of, tokens_of


@dataclass(frozen=True)
class Texts:
    """Texts with their labels and token ids."""

    texts: list[str]
    labels: list[str]
    tokens: list[list[int]]

    def only(self, rows: Iterable[int]) -> Texts:
        """Return some of the rows."""
        rows = list(rows)
        return Texts(*([part[row] for row in rows] for part in vars(self).values()))

    def marks(self) -> list[set[Any]]:
        """Return, for each text, what copies of it share: its letters and digits, or its tokens."""
        pairs = zip(self.texts, self.tokens, strict=True)
        return [{normal(text) or text, tuple(tokens)} for text, tokens in pairs]


def text(
    primary: dict,
    harmful: dict,
    tokenizer: str,
    transfer: Sequence[dict] = (),
    max_length: int = LENGTH,
    rows: int | None = None,
    attacker_times: int = 1,
    folder: str | None = None,
) -> Tasks:
    """Read text tasks from files; each task is a table of ``TextFiles``.

    Within each harmful class every second training text goes to the attacker, or ``attacker_times``
    texts for each of the defender's. Texts are copies if
    their letters and digits, or their tokens, agree. A text that occurs in its task's test data, or
    twice, is dropped from training; a primary one also if it is a harmful text. ``tokenizer`` is
    the model's folder or name, ``rows`` the most texts of a class in each part.
    """
    whole(max_length, "max_length", 2)
    whole(attacker_times, "attacker_times", 1)
    if rows is not None:
        whole(rows, "rows", 2)
    known = tokenizer_of(tokenizer)

    def read(table: dict) -> tuple[str, Texts, Texts]:
        files = checked_files(table)

        def part(split: str) -> Texts:
            found = _few(read_texts(files, split, folder), rows)
            texts, labels = map(list, zip(*found, strict=True))
            return Texts(texts, labels, tokens_of(texts, known, max_length))

        return files.called, part("train"), part("test")

    def task(name: str, train: Texts, test: Texts, names: Sequence[str]) -> Task:
        def pair(part: Texts, role: str) -> tuple[Tensor, Tensor]:
            labels = torch.tensor(numbered(part.labels, names, f"{name} {role}")[0])
            return pack(part.tokens, None, max_length, name), labels

        every = len(names) if set(train.labels) == set(names) else None
        return Task(pair(train, "train"), pair(test, "test"), name, classes=every, names=names)

    name, train, test = read(harmful)
    train, names = _without_copies(name, train, test), sorted(set(train.labels))
    mine, theirs = (train.only(part) for part in by_turns(train.labels, attacker_times))
    both = task(name, mine, test, names), task(f"{name} (attacker)", theirs, test, names)

    def other(table: dict, *kept: Texts) -> Task:
        name, train, test = read(table)
        names = sorted(set(train.labels))
        return task(name, _without_copies(name, train, test, *kept), test, names)

    return Tasks(other(primary, train, test), *both, tuple(map(other, transfer)))


def _without_copies(name: str, train: Texts, *others: Texts) -> Texts:
    """Drop training texts that repeat, or that others hold too."""
    seen: set[Any] = set().union(*(keys for other in others for keys in other.marks()))
    kept = []
    for row, keys in enumerate(train.marks()):
        if not keys & seen:
            kept.append(row)
        seen |= keys
    if not kept:
        raise InputError(f"{name}: every training text is also a test text; give other data.")
    if dropped := len(train.texts) - len(kept):
        warnings.warn(f"{name}: {dropped} training text(s) occur twice; dropped.", stacklevel=4)
    return train.only(kept)


def _few(rows: Rows, most: int | None) -> Rows:
    """Return the first rows of each label, at most so many."""
    counts: dict[str, int] = {}
    found = []
    for text, label in rows:
        counts[label] = counts.get(label, 0) + 1
        if most is None or counts[label] <= most:
            found.append((text, label))
    return found
