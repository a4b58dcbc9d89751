"""What fine-tuning attacks share: a new head, some trainable parameters, and a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from immunis.attacks.contract import (
    Arena,
    Meter,
    NotApplicableError,
    Point,
    Settings,
    checkpoints,
    count_flops,
    tensor,
)
from immunis.attacks.probes.shared import Units, loss_of
from immunis.models.cut import Cut
from immunis.theory.scores import score

BATCH = 128


class Network(nn.Module):
    """A cut model whose head is replaced by a fresh one for the attacker's task."""

    def __init__(self, cut: Cut, outputs: int) -> None:
        super().__init__()
        self.cut, self.body = cut, cut.model
        if not any(True for _ in cut.model.parameters()):
            raise NotApplicableError("the extractor has no parameters to train")
        parameter = cut.example
        self.head = nn.Linear(cut.width, outputs, dtype=parameter.dtype, device=parameter.device)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the attacker's logits."""
        return self.head(self.cut.features(inputs))


def space(arena: Arena) -> dict[str, Sequence[object]]:
    """Optimizer, learning rate and schedule; augmentation where the inputs are images."""
    images = arena.train.inputs.ndim == 4
    return {
        "optimizer": ("sgd", "adamw"),
        "rate": (0.01, 0.1),
        "schedule": ("long",) if arena.budget < 1000 else ("short", "long"),
        "augment": (False, True) if images else (False,),
    }


def parameters_of(cut: Cut, stages: Iterable[str]) -> list[nn.Parameter]:
    """Parameters of the named stages."""
    return [p for stage in stages for p in cut.model.get_submodule(stage).parameters()]


def tune(
    arena: Arena,
    network: Network,
    trainable: Iterable[nn.Parameter],
    settings: Settings,
    teacher: Callable[[Tensor], Tensor] | None = None,
    meter: Meter | None = None,
) -> list[Point]:
    """Train the head and ``trainable`` on the attacker's data and score along the way.

    ``rate`` is SGD's learning rate; AdamW takes a hundredth of it. ``teacher(rows)`` gives
    soft targets for rows of the training data, which are then learned beside the labels.
    """
    meter = meter or Meter(arena, extracted=False)
    chosen = {id(p) for p in trainable}
    for p in network.body.parameters():
        p.requires_grad_(id(p) in chosen)
    active = [p for p in network.parameters() if p.requires_grad]
    if settings["optimizer"] == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            active, lr=settings["rate"], momentum=0.9, nesterov=True
        )
    else:
        optimizer = torch.optim.AdamW(active, lr=settings["rate"] / 100, weight_decay=0.01)
    budget = arena.budget if settings["schedule"] == "long" else max(1, arena.budget // 4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, budget)
    generator, marks = arena.generator(), set(checkpoints(budget))
    inputs = tensor(arena.train.inputs).to(arena.device)
    labels = arena.labels(arena.train.labels)
    fit = torch.from_numpy(arena.rows[0])
    units = Units(labels[fit], arena.kind)
    size, flops = min(BATCH, len(fit)), 0.0
    network.to(arena.device).train()
    order = fit[:0]

    def train(rows: Tensor) -> None:
        x = inputs[rows]
        if settings["augment"]:
            x = _augmented(x, generator)
        optimizer.zero_grad()
        outputs = network(x)
        loss = loss_of(outputs, units.strip(labels[rows]).to(outputs.device), arena.kind)
        if teacher is not None:
            soft = units.strip(teacher(rows)).to(outputs)
            loss = loss + _distillation(outputs, soft, arena.kind)
        loss.backward()
        nn.utils.clip_grad_norm_(active, 5.0)
        optimizer.step()

    step = seen = 0
    while step < budget:
        if len(order) < size:
            order = fit[torch.randperm(len(fit), generator=generator)]
        rows, order = order[:size], order[size:]
        try:
            if flops:
                train(rows)
            else:
                _, flops = count_flops(lambda rows=rows: train(rows))  # type: ignore[misc]
                flops /= size
        except (MemoryError, torch.OutOfMemoryError):
            if size == 1:
                raise
            size //= 2
            arena.notes.append(f"out of memory: went on with batches of {size}")
            continue
        schedule.step()
        step, seen = step + 1, seen + size
        if step in marks:
            meter.point(step, seen, seen * flops, lambda: _scores(arena, network, units))
    return meter.points


def _scores(arena: Arena, network: Network, units: Units) -> tuple[float, float]:
    network.eval()
    held = arena.rows[1]
    parts = (
        (arena.train.inputs[held], arena.train.labels[held]),
        (arena.test.inputs, arena.test.labels),
    )
    found = []
    for inputs, labels in parts:
        blocks = tensor(inputs).split(512)
        outputs = torch.cat([network(block).cpu() for block in blocks])
        found.append(score(units.restore(outputs), arena.labels(labels), arena.kind))
    network.train()
    return found[0], found[1]


def _distillation(outputs: Tensor, soft: Tensor, kind: str) -> Tensor:
    if kind == "regression":
        return nn.functional.mse_loss(outputs, soft)
    return nn.functional.cross_entropy(outputs, soft.softmax(1))


def _augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip half of the images and shift all by up to an eighth of their size."""
    flip = torch.rand(len(images), generator=generator) < 0.5
    images = torch.where(flip.to(images.device)[:, None, None, None], images.flip(3), images)
    reach = max(1, images.shape[-1] // 8)
    dy, dx = (int(torch.randint(-reach, reach + 1, (), generator=generator)) for _ in range(2))
    return images.roll((dy, dx), (2, 3))
