"""What only the owner of a model can say: licence, threshold, who chose the harmful task, contact.

It comes from a small TOML file. What is left out is "not stated" on the card.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from immunis.core.errors import SettingsError
from immunis.core.records import readable
from immunis.core.settings import build, require, require_score
from immunis.core.toml import read_toml

NAME = "about.toml"  # under which a local page finds it beside a record
UNKNOWN = "not stated"
TOLERANCE = 0.005  # of the primary score, in its own unit: half a point of accuracy
SHARE = 0.1  # the default threshold: this far from the untrained control's best to the original's


@dataclass(frozen=True)
class About:
    """What a card says that no record holds.

    Attributes:
        model: the name under which the model is released.
        base_model: what it was made from.
        weights: the hash of the released weights.
        licence: the licence of the weights.
        harmful_tasks: what is to be prevented, in words.
        chosen_by: who chose these tasks.
        threshold: the highest score that an attacker may reach (a share, or R²); by default the
            one that the audit was given, or else a tenth of the way from the untrained control's
            best score to the original's.
        threshold_fixed: the day on which the threshold was fixed, as YYYY-MM-DD.
        tolerance: how much primary score the defence may lose; by default the audit's.
        fine_tunability: how well the model can be tuned on harmless tasks.
        unseen_classes: what is known of harmful classes that the defence never saw.
        open_model: a model that is already open, and serves the same attacker.
        open_score: the best attacker's score on it.
        known_breaks: attacks that are known to succeed, besides those of the records.
        reproduce: the command that makes the records again.
        contact: whom to write to.
        reaudit: what makes another audit due.
    """

    model: str = ""
    base_model: str = ""
    weights: str = ""
    licence: str = ""
    harmful_tasks: str = ""
    chosen_by: str = ""
    threshold: float | None = None
    threshold_fixed: str = ""
    tolerance: float | None = None
    fine_tunability: str = ""
    unseen_classes: str = ""
    open_model: str = ""
    open_score: float | None = None
    known_breaks: Sequence[str] = ()
    reproduce: str = ""
    contact: str = ""
    reaudit: str = ""

    def __post_init__(self) -> None:
        """Write control characters out; check the numbers and the day."""
        for entry in fields(self):
            object.__setattr__(self, entry.name, readable(getattr(self, entry.name)))
        for name in ("threshold", "open_score"):
            require_score(getattr(self, name), f"about: {name}")
        least = self.tolerance is None or 0 <= self.tolerance <= 1
        require(least, f"about: tolerance={self.tolerance!r:.40}: expected a number from 0 to 1.")
        if self.threshold_fixed:
            try:
                datetime.date.fromisoformat(self.threshold_fixed)
            except ValueError:
                day = self.threshold_fixed
                raise SettingsError(
                    f"about: threshold_fixed={day!r}: expected a day, YYYY-MM-DD."
                ) from None

    @classmethod
    def load(cls, path: str | Path) -> About:
        """Read a TOML file; raise InputError or SettingsError for one that cannot be used."""
        return about_of(read_toml(path, "file about the model"))


def about_of(given: About | Mapping[str, Any] | None) -> About:
    """Return what is said about a model; days may come as dates."""
    if not isinstance(given, Mapping):
        return given or About()
    dates = {k: v.isoformat() if type(v) is datetime.date else v for k, v in given.items()}
    return build(About, dates, "about")
