"""The names of the models beside a defence in every audit, and how far cost is counted."""

ORIGINAL = "original"  # the undefended model of a recipe
CONTROL = "untrained"  # a copy with fresh weights: its features help nobody
SCRATCH = "from scratch"  # that copy, trained by the attacker alone
REACH = 0.9  # cost counts up to this share of what the original allows above chance
