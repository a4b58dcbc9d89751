"""How fine-tuning attacks train: a new head, some trainable parameters, one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from immunis.attacks.contract import Arena, NotApplicableError, Searched, Settings, Step, tensor
from immunis.attacks.curves import Units, in_batches, loss_of
from immunis.models.cut import Cut
from immunis.theory.scores import score

BATCH = 128
# What every fine-tuning attack searches. AdamW takes a hundredth of the rate.
TUNING: Searched = {
    "optimizer": ("sgd", "adamw"),
    "rate": (0.01, 0.1),
    "schedule": lambda arena: ("short", "long") if arena.patient else ("long",),
    "augment": lambda arena: (False, True) if arena.train.inputs.ndim == 4 else (False,),  # images
}


class Network(nn.Module):
    """A copy of the arena's model, or ``cut``, with a fresh head for the attacker's task."""

    def __init__(self, arena: Arena, cut: Cut | None = None) -> None:
        super().__init__()
        self.cut = arena.cut.copy() if cut is None else cut
        self.body, like = self.cut.model, self.cut.example
        if not any(True for _ in self.body.parameters()):
            raise NotApplicableError("the extractor has no parameters to train")
        self.head = nn.Linear(self.cut.width, arena.outputs, dtype=like.dtype, device=like.device)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the attacker's logits."""
        return self.head(self.cut.features(inputs))

    def within(self, stages: Iterable[str]) -> list[nn.Parameter]:
        """Return the parameters of the named stages."""
        return [p for stage in stages for p in self.body.get_submodule(stage).parameters()]


def tune(
    arena: Arena,
    network: Network,
    trainable: Iterable[nn.Parameter],
    settings: Settings,
    teacher: Callable[[Tensor], Tensor] | None = None,
    spent: float = 0.0,
) -> Iterator[Step]:
    """Train the head and ``trainable`` on the attacker's data.

    ``teacher(rows)`` returns soft targets for rows of the training data, to learn beside the
    labels. ``spent`` are operations made beforehand.
    """
    chosen = {id(p) for p in trainable}
    for p in network.body.parameters():
        p.requires_grad_(id(p) in chosen)
    active = [p for p in network.parameters() if p.requires_grad]
    rate = settings["rate"]
    optimizer: torch.optim.Optimizer
    if settings["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(active, lr=rate, momentum=0.9, nesterov=True)
    else:
        optimizer = torch.optim.AdamW(active, lr=rate / 100, weight_decay=0.01)
    inputs, labels = tensor(arena.train.inputs).to(arena.device), arena.labels(arena.train.labels)
    fit = torch.from_numpy(arena.rows[0])
    units = Units(labels[fit], arena.kind)
    network.to(arena.device).train()

    def train(rows: Tensor, generator: torch.Generator) -> None:
        x = _augmented(inputs[rows], generator) if settings["augment"] else inputs[rows]
        optimizer.zero_grad()
        outputs = network(x)
        loss = loss_of(outputs, units.strip(labels[rows]).to(outputs.device), arena.kind)
        if teacher is not None:
            soft = units.strip(teacher(rows)).to(outputs)
            soft = soft.softmax(1) if arena.kind == "classification" else soft
            loss = loss + loss_of(outputs, soft, arena.kind)
        loss.backward()
        nn.utils.clip_grad_norm_(active, 5.0)
        optimizer.step()

    scores = partial(_scores, arena, network, units)
    if settings["schedule"] == "short":
        arena = replace(arena, budget=max(1, arena.budget // 4))
    return in_batches(arena, optimizer, train, scores, fit, BATCH, spent)


def _scores(arena: Arena, network: Network, units: Units) -> tuple[float, float]:
    """Score the network on the validation rows and on the test data."""

    def of(inputs: Tensor, labels: Tensor) -> float:
        outputs = torch.cat([network(block).cpu() for block in inputs.split(512)])
        return score(units.restore(outputs), labels, arena.kind)

    train, test, held = arena.train, arena.test, arena.rows[1]
    network.eval()
    validation = of(tensor(train.inputs[held]), arena.labels(train.labels[held]))
    found = validation, of(tensor(test.inputs), arena.labels(test.labels))
    network.train()
    return found


def _augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip half of the images and shift all by up to an eighth of their size."""
    flip = torch.rand(len(images), generator=generator) < 0.5
    images = torch.where(flip.to(images.device)[:, None, None, None], images.flip(3), images)
    reach = max(1, images.shape[-1] // 8)
    dy, dx = (int(torch.randint(-reach, reach + 1, (), generator=generator)) for _ in range(2))
    return images.roll((dy, dx), (2, 3))
