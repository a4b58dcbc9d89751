"""A table of text as Markdown, LaTeX or CSV, with what each of them would misread escaped."""

from __future__ import annotations

import re
from typing import NamedTuple

_MARKDOWN = {"&": "&amp;", "<": "&lt;", **{each: "\\" + each for each in "\\|[$"}}
_BY_ITSELF = re.compile(r":(?=//)|www(?=\.)|(?<=\w)@|\$", re.I)
_LATEX = {character: "\\" + character for character in "&%#_${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"κ": r"$\kappa$", "ρ": r"$\rho$", "ε": r"$\varepsilon$", "±": r"$\pm$", "∞": r"$\infty$"}
_LATEX |= {
    "¹": r"$^1$",
    "≫": r"$\gg$",
    "×": r"$\times$",
    "−": r"$-$",
    "–": "--",
    "²": r"$^2$",
    "≥": r"$\geq$",
}
_LATEX |= {"“": "``", "”": "''", "…": r"\dots"}
_LATEX |= {each: f"{{{each}}}" for each in "[]*"}  # at its start they would be options of \\\\
_FORMULA = re.compile(r"((?:^|[,;|\t\r\n\"])[\s\ufeff\u200b\u2060]*)([=+@＝＋－＠-])")


class Table(NamedTuple):
    """A title, column heads and rows of text, and notes on marked cells."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Return the table as Markdown, figures right-aligned, and a paragraph for each note."""
        rule = ["---"] + ["---:"] * (len(self.columns) - 1)
        head, *rows = ([inline(cell) for cell in line] for line in (self.columns, *self.rows))
        lines = ["| " + " | ".join(line) + " |" for line in (head, rule, *rows)]
        return "\n\n".join(["\n".join(lines), *map(inline, self.notes)])

    def latex(self) -> str:
        """Return the table as a LaTeX ``tabular`` (package booktabs), figures right-aligned."""
        lines = [" & ".join(map(_latex, line)) + r" \\" for line in (self.columns, *self.rows)]
        rules = [rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule"]
        body = [lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]
        return "\n".join([f"% {_one_line(self.title)}", *rules, *body])

    def csv(self) -> str:
        """Return the table as CSV."""
        return "".join(",".join(map(_csv, row)) + "\n" for row in (self.columns, *self.rows))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def inline(text: str) -> str:
    r"""Return text for one line or cell of Markdown: it cannot end it, open HTML or make a link.

    An invisible character (U+2060) splits what pages make links or mathematics of by themselves.

    >>> print(inline("a|b [c](d)\n<i>"))
    a\|b \[c](d) &lt;i>
    """
    split = _BY_ITSELF.sub("\\g<0>\u2060", _one_line(text))
    return "".join(_MARKDOWN.get(character, character) for character in split)


def _latex(text: str) -> str:
    r"""Return a cell with LaTeX's characters escaped.

    >>> print(_latex("κ ± 5% of R_ill"))
    $\kappa$ $\pm$ 5\% of R\_ill
    """
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _csv(text: str) -> str:
    """Return a number as it is, other text in quotes, with a mark before what may be a formula.

    That is a sign at the start, or after what another program may take for the end of a cell.

    >>> print(_csv("-0.5"), _csv("=1+1"), _csv("a; @b"))
    -0.5 "'=1+1" "a; '@b"
    """
    try:
        float(text)
    except ValueError:
        marked = _FORMULA.sub(r"\1'\2", text).replace('"', '""')
        return f'"{marked}"'
    return text.strip()
