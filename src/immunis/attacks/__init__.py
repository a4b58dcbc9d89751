"""What an attacker does with a released model, one attack per file.

To add one: write the file, add its ``ATTACK`` to one of the groups here, and to ``SETTINGS`` what
it searches that no other does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from immunis.attacks.adaptive import (
    distil,
    float64,
    pseudo_inverse,
    reinit_directions,
    renormalise,
    reparameterise,
    rescale_directions,
)
from immunis.attacks.contract import Arena, Attack, Point
from immunis.attacks.finetuning import (
    batchnorm_only,
    finetune_all,
    finetune_last,
    harmless_first,
    lora,
    reinit_last,
)
from immunis.attacks.probes import (
    adam,
    batchnorm_probe,
    gd_constant,
    gd_line_search,
    kernel,
    knn,
    lbfgs,
    logistic,
    mlp,
    ridge,
    sgd,
    standardise,
    whiten,
)
from immunis.attacks.surgery import concat_blocks, drop_last, earlier_layer, invert_last
from immunis.core.errors import SettingsError, unknown

GROUPS: dict[str, tuple[Attack, ...]] = {
    group: tuple(module.ATTACK for module in modules)
    for group, modules in {
        "probes": (
            gd_line_search,
            gd_constant,
            sgd,
            adam,
            lbfgs,
            ridge,
            logistic,
            standardise,
            whiten,
            batchnorm_probe,
            mlp,
            knn,
            kernel,
        ),
        "surgery": (earlier_layer, concat_blocks, drop_last, invert_last),
        "fine-tuning": (
            finetune_last,
            finetune_all,
            batchnorm_only,
            lora,
            harmless_first,
            reinit_last,
        ),
        "adaptive": (
            rescale_directions,
            reinit_directions,
            renormalise,
            distil,
            reparameterise,
            pseudo_inverse,
            float64,
        ),
    }.items()
}
ATTACKS: dict[str, Attack] = {a.name: a for group in GROUPS.values() for a in group}
QUICK = ("gd_line_search", "ridge", "whiten", "mlp", "knn", "drop_last", "finetune_all")
SLOW = ("lora", "harmless_first", "distil")
PRESETS: dict[str, tuple[tuple[str, ...], int]] = {
    "quick": (QUICK, 200),
    "standard": (tuple(name for name in ATTACKS if name not in SLOW), 250),
    "full": (tuple(ATTACKS), 10_000),
}


SETTINGS = (  # what attacks search, and an audit may narrow
    "augment", "basis", "bias", "blocks", "c", "damping", "k", "layer", "level", "metric",
    "optimizer", "penalty", "probe", "rate", "ridge", "schedule", "stages", "train", "width",
)  # fmt: skip


def check_space(names: Iterable[str]) -> None:
    """Refuse a name that no attack searches, with a close one."""
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
        names = tuple(str(name).strip() for name in given)
        budget = PRESETS["standard"][1]
    for name in names:
        if name not in ATTACKS:
            raise unknown("attack or set of attacks", name, [*PRESETS, *ATTACKS])
    if not names:
        raise SettingsError("no attack was named; an audit needs at least one.")
    return [ATTACKS[name] for name in dict.fromkeys(names)], budget


__all__ = ["ATTACKS", "GROUPS", "PRESETS", "Arena", "Attack", "Point", "check_space", "select"]
