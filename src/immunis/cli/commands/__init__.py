"""The commands, one verb a file; importing them registers them, in the order of ``--help``."""

from immunis.cli.commands import audit, demo, immunize, list, measure, reproduce  # isort: skip
from immunis.cli.commands import card, view, figures, push  # isort: skip

__all__ = [
    "audit", "card", "demo", "figures", "immunize", "list", "measure", "push", "reproduce", "view",
]  # fmt: skip
