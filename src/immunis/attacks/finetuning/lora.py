"""Fine-tune low-rank updates (LoRA, Hu et al. 2022) of every linear and convolutional layer."""

from __future__ import annotations

import dataclasses

from torch import nn

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.finetuning.shared import Network, space, tune


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train rank-8 updates and a new head; needs the extra ``lora`` (peft)."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise NotApplicableError("peft is not installed: pip install immunis[lora]") from error
    cut = arena.cut.copy()
    names = [
        name
        for name, module in cut.model.named_modules()
        if name and name != cut.head and _adaptable(module)
    ]
    if not names:
        raise NotApplicableError("the extractor has no linear or convolutional layer")
    network = Network(cut, arena.outputs)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=names)
    model = inject_adapter_in_model(config, cut.model)
    dtype = network.head.weight.dtype
    network.body = model.to(dtype)
    network.cut = dataclasses.replace(cut, model=model)
    trained = [p for name, p in model.named_parameters() if "lora_" in name]
    return tune(arena, network, trained, settings)


def _adaptable(module: nn.Module) -> bool:
    """Whether peft knows how to adapt a layer; ``Conv1D`` is GPT-2's linear one."""
    return isinstance(module, nn.Linear | nn.Conv2d) or type(module).__name__ == "Conv1D"


ATTACK = Attack("lora", "fine-tune low-rank updates", run, space, lambda cut: ())
