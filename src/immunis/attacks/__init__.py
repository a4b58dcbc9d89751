"""What an attacker does with a released model, one attack per file.

To add an attack, write one file in the folder of its family: it defines ``ATTACK``. Nothing else
is edited; see ``docs/add-an-attack.md``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from immunis.attacks.contract import MOST_STEPS, Attack
from immunis.core.errors import SettingsError, unknown
from immunis.core.settings import whole

FAMILIES = {f: f.replace("-", "") for f in ("probes", "surgery", "fine-tuning", "adaptive")}


@dataclass(frozen=True)
class Budget:
    """Largest number of optimizer steps of one run.

    Attributes:
        probes: of a probe.
        tuning: of fine-tuning a network.
        retraining: of changing a network without harmful labels, and then probing it.
    """

    probes: int
    tuning: int
    retraining: int

    @property
    def most(self) -> int:
        """The largest of the three."""
        return max(self.probes, self.tuning, self.retraining)

    def of(self, attack: Attack) -> int:
        """Return the budget of an attack."""
        if attack.retrains:
            return self.retraining
        return self.tuning if attack.fine_tunes else self.probes

    def changed(self, given: int | Mapping[str, int] | None) -> Budget:
        """Return this budget with one number for all parts, or with numbers for some by name.

        Raises:
            SettingsError: for another name, or a number that is none of steps.

        >>> Budget(250, 1000, 550).changed({"tuning": 100})
        Budget(probes=250, tuning=100, retraining=550)
        """
        if given is None:
            return self
        parts = given if isinstance(given, Mapping) else dict.fromkeys(vars(self), given)
        for part in parts:
            if part not in vars(self):
                raise unknown("part of budget", part, vars(self))
        return replace(self, **{part: whole(parts[part], "budget", 1) for part in parts})


# Each preset has the attacks of those before it too.
BUDGETS = {
    "quick": Budget(200, 200, 200),
    "standard": Budget(250, 1000, 250 + MOST_STEPS),
    "full": Budget(5000, 5000, 5000),
}


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
PROBES = sorted(  # of cached features, the most telling first
    (probe for probe in GROUPS["probes"] if probe.features is None and probe.reads),
    key=lambda attack: attack.telling,
)
PRESETS = {
    preset: (tuple(a.name for a in ATTACKS.values() if a.preset in list(BUDGETS)[:place]), budget)
    for place, (preset, budget) in enumerate(BUDGETS.items(), 1)
}
SETTINGS = sorted({"probe", *(name for a in ATTACKS.values() for name in a.settings)})


def check_space(names: Iterable[str]) -> None:
    """Raise SettingsError for a name that no attack searches, and suggest a close one."""
    for name in names:
        if name not in SETTINGS:
            raise unknown("setting of an attack", name, SETTINGS)


def select(attacks: str | Sequence[str]) -> tuple[list[Attack], Budget]:
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
