"""Formulas of the site: a ``math`` fence becomes MathML when the site is built.

Browsers draw MathML by themselves, so a page needs no script and no network. GitHub reads the
same fences.
"""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def formula(source: str, *_: Any, **__: Any) -> str:
    """Return a formula as a block of MathML."""
    return f'<p class="formula">{convert(source.strip(), display="block")}</p>'


def on_config(config: Any) -> Any:
    """Give the fence to Markdown; MkDocs calls this before it reads a page."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "formula", "format": formula}]
    return config
