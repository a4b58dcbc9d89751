"""The commands, one verb a file; importing them registers them, in the order of ``--help``."""

from immunis.cli.commands import audit, demo, immunize, list, measure, reproduce, card, figures  # isort: skip

__all__ = ["audit", "card", "demo", "figures", "immunize", "list", "measure", "reproduce"]
