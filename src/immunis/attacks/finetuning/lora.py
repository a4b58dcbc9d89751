"""Fine-tune low-rank updates (LoRA, Hu et al. 2022) of every linear and convolutional layer."""

import dataclasses

from torch import nn

from immunis.attacks.contract import Arena, Attack, Curve, NotApplicableError, Settings
from immunis.attacks.tuning import TUNING, Network, tune
from immunis.core.errors import SettingsError
from immunis.core.extras import need


def run(arena: Arena, settings: Settings) -> Curve:
    """Train rank-8 updates and a new head; needs the extra ``lora`` (peft)."""
    try:
        peft = need("peft")
    except SettingsError as error:
        raise NotApplicableError(str(error)) from error
    cut = arena.cut.copy()
    names = [n for n, m in cut.model.named_modules() if n not in ("", cut.head) and _adaptable(m)]
    if not names:
        raise NotApplicableError("the extractor has no linear or convolutional layer")
    network = Network(arena, cut)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=names)
    model = peft.inject_adapter_in_model(config, cut.model)
    network.body = model.to(network.head.weight.dtype)
    network.cut = dataclasses.replace(cut, model=model)
    trained = [p for name, p in model.named_parameters() if "lora_" in name]
    return tune(arena, network, trained, settings)


def _adaptable(module: nn.Module) -> bool:
    """Return True if peft can adapt a layer; ``Conv1D`` is GPT-2's linear one."""
    return isinstance(module, nn.Linear | nn.Conv2d) or type(module).__name__ == "Conv1D"


ATTACK = Attack(run, TUNING, (), place=4)
