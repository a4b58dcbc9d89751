"""Defences, one a file: every module of this package that has a ``METHOD`` is registered."""

from __future__ import annotations

import importlib
import pkgutil

from immunis.core.errors import unknown
from immunis.methods.base import LinearProblem, Method, Solution

__all__ = ["METHODS", "LinearProblem", "Method", "Solution", "get_method"]

METHODS: dict[str, Method] = {}


def get_method(name: str) -> Method:
    """Return the method of that name, or raise an error that suggests a close one."""
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


_names = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
_found = [getattr(importlib.import_module(name), "METHOD", None) for name in _names]
METHODS |= {m.name: m for m in sorted(filter(None, _found), key=lambda m: (m.order, m.name))}
