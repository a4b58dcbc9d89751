"""Attacks of few steps, whatever budget is asked for.

``python -m helpers.short SCRIPT ARGUMENTS`` runs a script with them.
"""

import runpy
import sys

from immunis.attacks import Budget

MOST = 20
_changed = Budget.changed


def changed(self, given):
    """The budget that is asked for, cut off; stands in for ``Budget.changed``."""
    found = _changed(self, given)
    return Budget(**{part: min(steps, MOST) for part, steps in vars(found).items()})


if __name__ == "__main__":
    Budget.changed = changed
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
