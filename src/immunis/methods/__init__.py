"""Defences, one a file: every module of this package that has a ``METHOD`` is registered."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from immunis.core.errors import unknown
from immunis.methods.base import LinearProblem, Method, Solution

__all__ = ["METHODS", "LinearProblem", "Method", "Solution", "get_method"]

METHODS: dict[str, Method] = {}


def get_method(name: str) -> Method:
    """Return the method of that name, or raise an error that suggests a close one."""
    try:
        return METHODS[name]
    except (KeyError, TypeError):
        raise unknown("method", name, METHODS) from None


def _discovered() -> Iterator[Method]:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        method = getattr(importlib.import_module(module.name), "METHOD", None)
        if method is not None:
            yield method


METHODS.update((m.name, m) for m in sorted(_discovered(), key=lambda m: (m.order, m.name)))
