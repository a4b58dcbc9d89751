"""Figures as people read them: numbers, percentages, points and shares with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from immunis.core.records import RANKS_DIFFER, Record
from immunis.report import query
from immunis.report.query import known

NOTED = "†"  # marks the score of an attack that notes a doubt about itself
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


def defined(value: float | None) -> str:
    """Return RIR or one of its factors for people.

    >>> defined(2.0), defined(None)
    ('2', 'not defined: ranks differ')
    """
    return f"not defined: {RANKS_DIFFER}" if value is None or value != value else number(value)


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal; – where it is undefined."""
    return "–" if share != share else f"{100 * share:.1f}"


def steps_of(record: Record) -> str:
    """Return the steps of a run of an attack, those of probes too if they have more."""
    tuning = record.settings["budget"]
    probes = record.settings.get("probe_budget") or tuning
    apart = f" of fine-tuning, {number(probes)} of probes" if probes > tuning else ""
    return f"{number(tuning)} steps{apart}"


def signed(value: float, digits: int) -> str:
    """Return a number with its sign, ± for zero.

    >>> signed(-0.04, 1), signed(-0.06, 1), signed(2, 1)
    ('±0.0', '−0.1', '+2.0')
    """
    text = f"{abs(value):.{digits}f}"
    return ("±" if not float(text) else "−" if value < 0 else "+") + text


def points(found: Mapping[str, Any] | None, kind: str) -> str:
    """Return a difference of scores with its interval: points of accuracy, or R².

    >>> points({"mean": 0.123, "low": 0.1, "high": 0.15}, "classification")
    '+12.3 (+10.0 to +15.0)'
    """
    if found is None or not math.isfinite(known(found["mean"])):
        return "–"
    factor, digits = (100, 1) if kind == "classification" else (1, 3)
    mean, low, high = (
        signed(factor * end, digits) if math.isfinite(end) else ""
        for end in (known(found.get(name)) for name in ("mean", "low", "high"))
    )
    return f"{mean} ({low} to {high})" if low and high else mean


def unit(kind: str) -> str:
    """Return what differences of scores are counted in."""
    return "points" if kind == "classification" else "R²"


def amount(value: float, kind: str) -> str:
    """Return a difference of scores without its sign, in its unit.

    >>> amount(0.02, "classification"), amount(0.02, "regression")
    ('2.0 points', '0.020 R²')
    """
    factor, digits = (100, 1) if kind == "classification" else (1, 3)
    return f"{abs(factor * value):.{digits}f} {unit(kind)}"


def times(multiple: float | None) -> str:
    """Return a cost as a multiple of the original's.

    >>> times(2.5), times(math.inf), times(None), times(math.nan)
    ('2.5', 'not reached', '–', '–')
    """
    if multiple is None or math.isnan(multiple):
        return "–"
    return "not reached" if math.isinf(multiple) else number(multiple)


def share_cell(found: Mapping[str, Any] | None) -> str:
    """Return a share with its interval; a mark that ``text.COLUMNS`` explains if it is not told.

    >>> share_cell({"mean": 0.4, "low": -0.1, "high": 0.9}), share_cell({"mean": None})
    ('0.4 (−0.1 to 0.9)', '–¹')
    >>> share_cell({"mean": 1.49, "low": 0.0, "high": math.inf})
    '–²'
    """
    if found is None or (why := query.untold(found)):
        return "–¹" if found is None or why == query.NO_HELP else "–²"
    ends = [known(found.get(end)) for end in ("low", "high")]
    span = ""
    if ends[0] < ends[1]:
        span = " ({} to {})".format(*(number(float(f"{end:.2g}")) for end in ends))
    return (number(found["mean"]) + span).replace("-", "−")
