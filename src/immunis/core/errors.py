"""The few errors immunis raises, and how their messages are built.

A message says what came, what was expected, and what to do. Every error is a
``ValueError`` (the caller can mend it) or a ``RuntimeError`` (the world failed).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 60  # names that an error lists
MEANT = {"gpu": "cuda"}  # by other names


class ImmunisError(Exception):
    """Base of every error this library raises on purpose."""


class InputError(ImmunisError, ValueError):
    """Data, a model or a matrix that cannot be used as it is."""


class SettingsError(ImmunisError, ValueError):
    """An unknown name, an unknown key, or a setting outside its range."""


class NumericalError(ImmunisError, RuntimeError):
    """A computation that left the range in which its result would be true."""


class OutputError(ImmunisError, RuntimeError):
    """A file or folder that cannot be written."""


class LostProcessError(ImmunisError, RuntimeError):
    """Another process of a distributed run has ended before its time."""


class LostPrimaryWarning(UserWarning):
    """A defended model lost more of its primary score than it may."""


class ScaleWarning(UserWarning):
    """Columns differ so much in scale that linear figures show the largest alone."""


class RankWarning(UserWarning):
    """A Gram matrix is rank-deficient, so its figures describe a subspace only."""


def unknown(kind: str, name: str, known: Iterable[object]) -> SettingsError:
    """Build the error for a name that is not in ``known``, with the closest one.

    >>> print(unknown("method", "frontir", ["condition", "frontier"]))
    unknown method 'frontir': did you mean 'frontier'? Known: condition, frontier
    """
    known = sorted(map(str, known))
    meant = MEANT.get(str(name).lower())
    close = (
        [meant]
        if meant in known
        else difflib.get_close_matches(str(name), known, n=1 if len(known) <= MOST else 5)
    )
    hint = f": did you mean {' or '.join(map(repr, close))}?" if close else "."
    more = f", ... ({len(known)} in all)" if len(known) > MOST else ""
    listed = ", ".join(known[:MOST]) or "none"
    return SettingsError(f"unknown {kind} {name!r}{hint} Known: {listed}{more}")
