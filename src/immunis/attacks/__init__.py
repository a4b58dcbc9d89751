"""What an attacker does with a released model, one attack per file.

To add an attack, write one file in the folder of its family: it defines ``ATTACK``. Nothing else
is edited; see ``docs/add-an-attack.md``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module

from immunis.attacks.contract import Attack
from immunis.core.errors import SettingsError, unknown

FAMILIES = {f: f.replace("-", "") for f in ("probes", "surgery", "fine-tuning", "adaptive")}
BUDGETS = {"quick": 200, "standard": 250, "full": 10_000}  # each preset has the smaller ones too


def _found_in(folder: str) -> tuple[Attack, ...]:
    """Return the attacks of a folder in their order, named after their files."""
    found = []
    for each in pkgutil.iter_modules(import_module(f"{__name__}.{folder}").__path__):
        module = import_module(f"{__name__}.{folder}.{each.name}")
        summary = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        found.append(replace(module.ATTACK, name=each.name, summary=summary))
    return tuple(sorted(found, key=lambda attack: (attack.place, attack.name)))


GROUPS = {family: _found_in(folder) for family, folder in FAMILIES.items()}
ATTACKS = {attack.name: attack for group in GROUPS.values() for attack in group}
PROBES = sorted(GROUPS["probes"], key=lambda attack: attack.telling)  # the most telling first
PRESETS = {
    preset: (tuple(a.name for a in ATTACKS.values() if BUDGETS[a.preset] <= budget), budget)
    for preset, budget in BUDGETS.items()
}
SETTINGS = sorted({"probe", *(name for a in ATTACKS.values() for name in a.settings)})


def check_space(names: Iterable[str]) -> None:
    """Raise SettingsError for a name that no attack searches, and suggest a close one."""
    for name in names:
        if name not in SETTINGS:
            raise unknown("setting of an attack", name, SETTINGS)


def select(attacks: str | Sequence[str]) -> tuple[list[Attack], int]:
    """Return the attacks of a preset, or those named, and the budget in optimizer steps.

    Names come as a sequence, or as one string with commas between them.
    """
    if isinstance(attacks, str) and attacks in PRESETS:
        names, budget = PRESETS[attacks]
    else:
        given = attacks.split(",") if isinstance(attacks, str) else attacks
        names, budget = tuple(str(name).strip() for name in given), BUDGETS["standard"]
    for name in names:
        if name not in ATTACKS:
            raise unknown("attack or set of attacks", name, [*PRESETS, *ATTACKS])
    if not names:
        raise SettingsError("no attack was named; an audit needs at least one.")
    return [ATTACKS[name] for name in dict.fromkeys(names)], budget
