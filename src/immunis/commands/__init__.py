"""The commands, one verb a file: arguments in, text out; importing them registers them."""

from immunis.commands import measure, immunize, audit, show, reproduce, demo, list  # isort: skip

__all__ = ["audit", "demo", "immunize", "list", "measure", "reproduce", "show"]
