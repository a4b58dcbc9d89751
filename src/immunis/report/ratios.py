"""RIR and its ceilings in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from immunis.core.records import Record
from immunis.core.shapes import ImmunizeFigures
from immunis.report.format import defined, number
from immunis.report.query import ROLES


def _undefined(record: Record) -> str:
    """Return why an ``immunize`` record has no RIR; nothing where it has one."""
    f: ImmunizeFigures = record.figures
    said = []
    for role in ROLES:
        before, after = f["spectra"][role]["before"]["rank"], f["spectra"][role]["after"]["rank"]
        if before != after:
            said.append(f"the rank of the {role} features went from {before} to {after}")
    if not said:
        return ""
    return (
        f"RIR is not defined: ranks differ. Note that {' and '.join(said)}: condition numbers "
        "before and after describe different subspaces."
    )


def ratio(record: Record) -> str:
    """Return RIR of an ``immunize`` record in words, with its ceilings where they are known."""
    f: ImmunizeFigures = record.figures
    if said := _undefined(record):
        return said
    inputs, value = f["rir_against_inputs"], number(f["rir"]["value"])
    if f["ceiling"] is None or inputs is None:
        return f"RIR = {value} against the given model."
    return (
        f"RIR = {value} against the given extractor, of at most {_most(f)}; "
        f"{defined(inputs['value'])} against the inputs, of at most "
        f"{number(f['ceiling_against_inputs'])}."
    )


def factors(record: Record) -> str:
    """Return RIR of an ``immunize`` record and what it is made of, in words."""
    found = record.figures["rir"]
    return _undefined(record) or (
        f"The harmful task's condition number changed by a factor of {number(found['harmful'])}, "
        f"the primary task's by {number(found['primary'])}: RIR = {number(found['value'])} against "
        "the given model."
    )


def _most(found: Mapping[str, Any]) -> str:
    """Return RIR*, and what bounds RIR without free directions where these make it infinite."""
    most = number(found["ceiling"])
    if math.isinf(found["ceiling"]) and "shared_ceiling" in found:
        most += f" ({number(found['shared_ceiling'])} without free directions)"
    return most


def measured_words(record: Record) -> str:
    """Return the ceilings and ρ of a ``measure`` record in words."""
    f = record.figures
    free = "no free directions"
    if f["free_directions"]:
        free = (
            f"free directions: {f['free_directions']}; maps that drop or decouple them reach RIR "
            f"{number(f['shared_ceiling'])}, shrinking them to {record.settings['floor']:.0e} "
            f"gives {number(f['floored_ceiling'])}"
        )
    return (
        f"ceiling RIR* = {number(f['ceiling'])}, with a ridge of {record.settings['ridge']:.0e}: "
        f"{number(f['ridge_ceiling'])}; {free}; harmful labels a linear probe explains: "
        f"ρ = {number(f['rho'])}"
    )


def ceiling(record: Record) -> str:
    """Return what bounds the ratio, or why nothing does."""
    if record.kind == "immunize":
        if record.figures["ceiling"] is None:
            return (
                "There is no ceiling for a trained network: RIR* bounds what a linear map of "
                "fixed features can reach, and training changes the features."
            )
        return f"No linear map of the given features exceeds RIR* = {_most(record.figures)}."
    found = record.figures["models"][record.settings["original"]]
    if "ceiling" not in found:
        return "This record holds no ceiling."
    return (
        f"RIR* = {_most(found)} bounds every defence that is a linear map of the original's "
        "features. No bound is known for a defence that trains the network."
    )
