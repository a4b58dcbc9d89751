"""The names of the models beside a defence in every audit, and how far cost is counted."""

from typing import Final

ORIGINAL = "original"  # the undefended model of a recipe
CONTROL = "untrained"  # a copy with fresh weights: its features help nobody
SCRATCH: Final = "from scratch"  # that copy, trained by the attacker alone
REACH = 0.9  # cost counts up to this share of what the original allows above chance
