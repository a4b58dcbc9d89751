"""The means of an attacker: which attacks take what, from reading outputs to long fine-tuning."""

from __future__ import annotations

from immunis.core.records import Record

CHEAP = 1000  # steps up to which plain fine-tuning is cheap
MEANS = {  # by family of attacks
    "probes": "Reads outputs and features",
    "surgery": "Tunes a probe of any layer",
    "fine-tuning": "Fine-tunes cheaply",
    "adaptive": "Fine-tunes at length, or knows the defence",
}
OTHERS = {  # attacks of version 0.1, whose records name no family, besides its probes
    "surgery": ("earlier_layer", "concat_blocks", "drop_last", "invert_last"),
    "fine-tuning": (
        "finetune_last",
        "finetune_all",
        "batchnorm_only",
        "lora",
        "harmless_first",
        "reinit_last",
    ),
    "adaptive": (
        "rescale_directions",
        "reinit_directions",
        "renormalise",
        "distil",
        "reparameterise",
        "pseudo_inverse",
        "float64",
    ),
}


def means_of(record: Record, attack: str) -> str:
    """Return the means that an attack of an audit takes, a key of ``MEANS``.

    Plain fine-tuning of more than ``CHEAP`` steps counts as long.
    """
    old = next((family for family, names in OTHERS.items() if attack in names), "probes")
    family = record.settings.get("families", {}).get(attack, old)
    if family == "fine-tuning" and record.settings["budget"] > CHEAP:
        return "adaptive"
    return family if family in MEANS else "adaptive"
