"""One attack on one model with one seed, as a plain result: what a sweep runs and keeps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from immunis.attacks import ATTACKS
from immunis.attacks.contract import Arena, NotApplicableError
from immunis.attacks.search import search
from immunis.core.errors import SettingsError


def run_attack(
    name: str, arena: Arena, trials: int | None, space: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Any]:
    """Run one attack on one arena; what fails is recorded as failed, with the reason."""
    attack, started = ATTACKS[name], time.perf_counter()
    arena = dataclasses.replace(arena, cut=arena.cut.on(arena.device))
    try:
        outcome = search(attack, arena, trials, space)
    except NotApplicableError as reason:
        return {"status": "not applicable", "reason": str(reason)}
    except SettingsError:
        raise  # the request is wrong, not the attack
    except Exception as error:  # an attack is somebody's code: one failure must not end the audit
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {
        "status": "done",
        "settings": dict(outcome.settings),
        "curve": [vars(point) for point in outcome.points],
        "trials": outcome.trials,
        "runs": outcome.runs,
        "search_flops": outcome.search_flops,
        "seconds": time.perf_counter() - started,
        "notes": outcome.notes,
    }
