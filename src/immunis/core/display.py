"""What every result and record offers: it prints as a table, and gives a DataFrame and a figure.

How they look is the business of ``report``, which stands above the rooms that make results. It
enters its functions here (``report.display``), and ``immunis.public`` imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

VIEWS: dict[str, Callable[..., Any]] = {}  # text, html, frame and figure of a record


def _view(name: str) -> Callable[..., Any]:
    if not VIEWS:  # a module was imported without the package's public names
        import_module("immunis.public")
    return VIEWS[name]


class Shown:
    """A result with a ``record``, which says how the result is shown."""

    def __str__(self) -> str:
        """Return the tables of the record as text."""
        return _view("text")(self._shown())

    def _repr_html_(self) -> str:
        """Return the tables of the record for a notebook."""
        return _view("html")(self._shown())

    def to_frame(self) -> Any:
        """Return the figures as a pandas DataFrame, one row for each spectrum, figure or attack.

        Raises:
            SettingsError: if pandas is not installed.
            InputError: for a kind of record without a frame.
        """
        return _view("frame")(self._shown())

    def plot(self, figure: str | None = None) -> Any:
        """Return a matplotlib ``Figure``: a notebook shows it, ``savefig`` writes it.

        ``figure`` is one of those that ``immunis figures`` draws; by default the first of them.

        Raises:
            SettingsError: for a figure that the record does not have.
            InputError: for a kind of record without figures.
        """
        return _view("figure")(self._shown(), figure)

    def _shown(self) -> Any:
        return self.record  # type: ignore[attr-defined]
