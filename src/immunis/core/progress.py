"""How a long run tells what it has done: one callback shape for every room."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]  # what was done, and the share of the whole in [0, 1]


def silent(what: str, share: float) -> None:
    """Tell nobody."""
