"""Conditions on a record's figures under which a command fails: ``--fail-if "kept>0.1"``.

A condition compares figures with numbers, ``NAME OP NUMBER``, joined by ``and`` and ``or`` (``and``
binds tighter). ``NAME[MODEL]`` is the figure of one audited model; without a model it is that of
the defence which the headline is about. A figure that is not defined fails, with the reason.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from immunis.core.errors import SettingsError, unknown
from immunis.core.records import RANKS_DIFFER, Record
from immunis.core.shapes import CONTROL, AuditFigures, ImmunizeFigures
from immunis.report.format import number
from immunis.report.query import broken, defended, known, leading, reached, untold, worst_share

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
PART = re.compile(
    r"\s*(?P<name>\w+)\s*(?:\[(?P<model>[^\[\]]+)\])?\s*(?P<sign><=|>=|<|>)\s*"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)
JOINED = re.compile(r"\s+(and|or)\s+")
POINTS = "points of accuracy, or R²"
IMMUNIZE = {
    "primary": f"change of the primary score, {POINTS}",
    "primary_after": "primary score of the defended model, percent, or R²",
    "rho": "share of the harmful labels that a linear probe explains, of the defended model",
    "rir": "relative immunization ratio against the given model",
}
AUDIT = {
    "highest": "highest test score that any attack reaches, percent, or R²",
    "original": "the same on the undefended model",
    "untrained": "the same on the untrained control",
    "gain": f"most that an attack gains over the same attack on untrained features, {POINTS}",
    "to_original": f"best attack less the best on the undefended model, {POINTS}",
    "kept": "largest share of the original's help that an attack keeps (0.1 is a tenth)",
    "cost": "steps to 90% of what the original allows, as a multiple of the original's",
    "primary": f"change of the primary score against the undefended model, {POINTS}",
    "rho": "share of the attacker's labels that a linear probe explains",
    "rir": "relative immunization ratio against the undefended model",
    "failed": "number of attacks that failed",
}
NAMES: dict[str, Mapping[str, str]] = {"immunize": IMMUNIZE, "audit": AUDIT}


class Figure(NamedTuple):
    """A figure, and why it is not defined if it is NaN."""

    value: float
    why: str = "it is not known"


class Comparison(NamedTuple):
    """A figure's name, of one model or of the one in the headline, compared with a number."""

    name: str
    model: str | None
    sign: str
    bound: float

    def __str__(self) -> str:
        """Show it as it was given."""
        of = "" if self.model is None else f"[{self.model}]"
        return f"{self.name}{of}{self.sign}{self.bound:g}"


Condition = list[list[Comparison]]  # one of these holds if all of its comparisons do


def condition(text: str, kind: str, models: Collection[str] | None = None) -> Condition:
    """Return a condition on the figures of a kind of record; ``models`` are those it may name.

    Raises:
        SettingsError: for an unknown figure or model, or text that is no condition.

    >>> condition("kept > 0.1 or primary<-0.5", "audit")[0]
    [Comparison(name='kept', model=None, sign='>', bound=0.1)]
    """
    first, *rest = JOINED.split(text)
    found: Condition = [[_comparison(first, text, kind, models)]]
    for word, part in zip(rest[::2], rest[1::2], strict=True):
        compared = _comparison(part, text, kind, models)
        if word == "and":
            found[-1].append(compared)
        else:
            found.append([compared])
    return found


def _comparison(part: str, text: str, kind: str, models: Collection[str] | None) -> Comparison:
    read = PART.fullmatch(part)
    if read is None:
        raise SettingsError(
            f"--fail-if {text!r}: {part!r} is no comparison; expected NAME<NUMBER, NAME>NUMBER, "
            f"<= or >=, joined by 'and' or 'or'. Names: {', '.join(NAMES[kind])}."
        )
    name, model = read["name"], read["model"]
    if name not in NAMES[kind]:
        raise unknown("figure of --fail-if", name, NAMES[kind])
    if model is not None and models is not None and model not in models:
        raise unknown("model of --fail-if", model, models)
    return Comparison(name, model, read["sign"], float(read["number"]))


def failure(record: Record, wanted: Condition) -> str:
    """Return one line that says what was found where a condition holds; "" where it does not."""
    found: dict[Comparison, Figure] = {}
    for compared in (each for part in wanted for each in part):
        found[compared] = _figure(record, compared)
    for compared, figure in found.items():
        if math.isnan(figure.value):
            return f"--fail-if {compared}: {compared.name} is not defined: {figure.why}."
    for part in wanted:
        if all(COMPARISONS[c.sign](found[c].value, c.bound) for c in part):
            told = (f"{c.name}{_of(record, c)} is {number(found[c].value)}" for c in part)
            return f"--fail-if {' and '.join(map(str, part))}: {', '.join(told)}."
    return ""


def _of(record: Record, compared: Comparison) -> str:
    return f" of {_model(record, compared)}" if record.kind == "audit" else ""


def _model(record: Record, compared: Comparison) -> str:
    """Return the model whose figure is meant."""
    if compared.model is None:
        return leading(record) or record.settings["original"]
    models = [record.settings["original"], *defended(record)]
    if compared.model not in models:
        raise unknown("model of --fail-if", compared.model, models)
    return compared.model


def _figure(record: Record, compared: Comparison) -> Figure:
    if record.kind == "immunize":
        return _immunized(record, compared.name)
    return _audited(record, compared.name, _model(record, compared))


def _scale(kind: str) -> float:
    return 100.0 if kind == "classification" else 1.0


def _change(after: float | None, before: float | None, kind: str) -> Figure:
    gap = known(after) - known(before)
    return Figure(_scale(kind) * gap, "the primary score was not measured")


def _immunized(record: Record, name: str) -> Figure:
    f: ImmunizeFigures = record.figures
    kind, score = record.data["primary"]["kind"], f["primary_score"]
    after = score["after"]
    found = {
        "primary": _change(after, score["before"], kind),
        "primary_after": _change(after, 0.0, kind),
        "rho": Figure(known(f["rho"]["after"]), "the harmful labels are constant"),
        "rir": Figure(known(f["rir"]["value"]), RANKS_DIFFER),
    }
    return found[name]


def _audited(record: Record, name: str, model: str) -> Figure:
    f: AuditFigures = record.figures
    original, kind = record.settings["original"], record.data["attacker"]["kind"]
    case, row, scale = f["worst_case"][model], f["models"][model], _scale(kind)
    if broken(record, model) and name in ("highest", "gain", "to_original", "kept", "cost"):
        return Figure(math.nan, f"{model} lost its primary task")
    if name in ("highest", "original", "untrained"):
        of = {"highest": model, "original": original, "untrained": CONTROL}[name]
        return Figure(scale * reached(record, of).score, f"no attack ran on {of}")
    share = worst_share(case)
    kept, why = known(share["mean"]), untold(share)
    steps = (case.get("multiplier") or {}).get("steps")
    gap: Any = case.get("to_original") or {"mean": 0.0 if model == original else None}
    primary = record.data["primary"]["kind"]
    found = {
        "gain": Figure(scale * known(case.get("gain")), "no attack ran on it and on the control"),
        "to_original": Figure(scale * known(gap["mean"]), "no attack ran on both"),
        "kept": Figure(math.nan if why else kept, why),
        "cost": Figure(known(steps), "the original does not reach it either"),
        "primary": _change(row["primary"], f["models"][original]["primary"], primary),
        "rho": Figure(known(row["rho"]), "the attacker's labels are constant"),
        "rir": Figure(known(row["rir"]), RANKS_DIFFER),
        "failed": Figure(float(case["failed"])),
    }
    return found[name]
