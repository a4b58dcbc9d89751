"""Defences, one per file. To add one: write the file, add its ``METHOD`` here."""

from __future__ import annotations

from immunis.core.errors import unknown
from immunis.methods import condition, erase, frontier, imma, opt_kappa, probe, r_ill
from immunis.methods.base import LinearProblem, Method, Solution

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (r_ill, imma, opt_kappa, condition, frontier, erase, probe)
}


def get_method(name: str) -> Method:
    """Return the method of that name, or say which name was meant."""
    try:
        return METHODS[name]
    except (KeyError, TypeError):
        raise unknown("method", name, METHODS) from None


__all__ = ["METHODS", "LinearProblem", "Method", "Solution", "get_method"]
