"""Tables as text: Markdown, LaTeX, CSV; numbers as people read them."""

from __future__ import annotations

import csv
import io
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A title, column heads and rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Return the table as Markdown, figures right-aligned."""
        rule = ["---"] + ["---:"] * (len(self.columns) - 1)
        head, *rows = ([inline(cell) for cell in line] for line in (self.columns, *self.rows))
        lines = [head, rule, *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def latex(self) -> str:
        """Return the table as a LaTeX ``tabular`` (package booktabs), figures right-aligned."""
        lines = [" & ".join(map(_latex, line)) + r" \\" for line in (self.columns, *self.rows)]
        rules = [rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule"]
        body = [lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]
        return "\n".join([f"% {self.title}", *rules, *body])

    def csv(self) -> str:
        """Return the table as CSV."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([self.columns, *self.rows])
        return buffer.getvalue()


def inline(text: str) -> str:
    r"""Return text for one line or cell of Markdown: it cannot end it, open HTML or make a link.

    >>> print(inline("a|b [c](d)\n<i>"))
    a\|b \[c](d) &lt;i>
    """
    text = " ".join(text.split()).replace("<", "&lt;")
    return text.replace("|", r"\|").replace("[", r"\[")


_LATEX = {character: "\\" + character for character in "&%#_${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"κ": r"$\kappa$", "ρ": r"$\rho$", "ε": r"$\varepsilon$", "±": r"$\pm$", "∞": r"$\infty$"}
_LATEX |= {"≫": r"$\gg$", "×": r"$\times$", "−": r"$-$", "–": "--", "²": r"$^2$", "≥": r"$\geq$"}
_LATEX |= {"“": "``", "”": "''", "…": r"\dots"}


def _latex(text: str) -> str:
    r"""Return a cell with LaTeX's characters escaped.

    >>> print(_latex("κ ± 5% of R_ill"))
    $\kappa$ $\pm$ 5\% of R\_ill
    """
    return "".join(_LATEX.get(character, character) for character in text)


def number(value: Any) -> str:
    """Return a figure for people: three significant digits, ∞ for infinity, – for nothing.

    >>> number(39468.6), number(0.0281), number(12), number(float("inf"))
    ('3.9e4', '0.0281', '12', '∞')
    """
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        return f"{value:,}"
    if value != value:
        return "undefined"
    if value == 0 or 1e-3 <= abs(value) < 9999.5:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal; – where it is undefined."""
    return "–" if share != share else f"{100 * share:.1f}"
