"""The commands, one verb a file: arguments in, text out; importing them registers them."""

from immunis.cli.commands import audit, demo, immunize, list, measure, reproduce, show  # isort: skip

__all__ = ["audit", "demo", "immunize", "list", "measure", "reproduce", "show"]
