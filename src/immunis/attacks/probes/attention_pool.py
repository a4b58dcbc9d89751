"""Learned queries attend over a stage's positions or tokens, in place of their mean."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from immunis.attacks.arrays import tensor
from immunis.attacks.contract import Arena, Attack, Searched, Settings, Step, count_flops
from immunis.attacks.features import Features
from immunis.attacks.learning import Units, in_batches, loss_of
from immunis.attacks.surgery.maps import layers
from immunis.attacks.tuning import BATCH
from immunis.core.state import seeded
from immunis.models.cut import Cut
from immunis.models.positions import mask_of
from immunis.theory.feature_maps import mean_and_scale

QUERIES, HIDDEN = 4, 64
Seen = dict[str, tuple[Tensor, Tensor]]


class Positions:
    """Read positions of stages (n, T, C), standardised as some rows are, and which are real."""

    def __init__(self, cut: Cut, stages: Sequence[str], example: Tensor) -> None:
        self.cut, self.stages = cut, stages
        given = self._given(example)
        self.units = {stage: mean_and_scale(z[kept]) for stage, (z, kept) in given.items()}

    def __call__(self, inputs: Tensor) -> Seen:
        """Return standardised positions by stage, and which of them are no padding (n, T)."""
        found = self._given(inputs).items()
        return {
            name: ((z - self.units[name][0]) / self.units[name][1], k) for name, (z, k) in found
        }

    @torch.no_grad()
    def _given(self, inputs: Tensor) -> Seen:
        found, seen = self.cut.capture(inputs, self.stages), Seen()
        mask = mask_of(self.cut.model, inputs)
        for stage in self.stages:
            z = self.cut.unpooled(stage, found[stage], mask).float()
            kept = z.new_ones(z.shape[:2]) if mask is None else mask.to(z)
            seen[stage] = z, kept.bool()
        return seen


class AttentionPool(nn.Module):
    """Queries that start as the mean over positions, and a head: linear, or with a hidden layer.

    The last layer starts at zero.
    """

    def __init__(self, width: int, outputs: int, head: str) -> None:
        super().__init__()
        self.queries = nn.Parameter(0.01 * torch.randn(width, QUERIES))
        wide, hidden = width * QUERIES, list[nn.Module]()
        if head == "mlp":
            wide, hidden = HIDDEN, [nn.Linear(wide, HIDDEN), nn.ReLU()]
        last = nn.Linear(wide, outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(*hidden, last)

    def forward(self, z: Tensor, kept: Tensor) -> Tensor:
        """Return logits: each query's weighted mean of the positions, read side by side."""
        scores = z @ self.queries / math.sqrt(z.shape[-1])
        weights = scores.masked_fill(~kept[..., None], -torch.inf).softmax(1)
        return self.head((weights.mT @ z).flatten(1))


def _learn(probe: AttentionPool, seen: tuple[Tensor, Tensor], labels: Tensor, kind: str) -> None:
    loss_of(probe(*seen), labels, kind).backward()


def together(arena: Arena, choices: Sequence[Settings]) -> Iterator[list[Step]]:
    """Train queries and heads by AdamW; one pass of a batch through the network serves all."""
    inputs, test = tensor(arena.train.inputs), tensor(arena.test.inputs)
    known = len(inputs)
    rows = Features(arena, torch.arange(known), known + torch.arange(len(test)))  # their numbers
    units = Units(rows.y, arena.kind)
    y = units.strip(rows.y).to(arena.device)
    stages = tuple(dict.fromkeys(settings["layer"] for settings in choices))
    see = Positions(arena.cut, stages, inputs[rows.z[:BATCH]])
    seen, forward = count_flops(lambda: see(inputs[:1]))
    probes, costs = [], []
    for settings in choices:
        one = seen[settings["layer"]]
        with seeded(arena.seed):  # alike, whatever it is trained beside
            probe = AttentionPool(one[0].shape[-1], arena.outputs, settings["head"]).to(one[0])
        costs.append(forward + count_flops(partial(_learn, probe, one, y[:1], arena.kind))[1])
        probes.append(probe)
    groups = [
        {"params": list(probe.parameters()), "lr": settings["rate"]}
        for probe, settings in zip(probes, choices, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    answers: dict[bool, list[Tensor]] = {}  # to the rows asked about, of all probes

    def logits(x: Tensor) -> list[Tensor]:
        seen = see(x)
        pairs = zip(probes, choices, strict=True)
        return [probe(*seen[settings["layer"]]) for probe, settings in pairs]

    def train(batch: Tensor, _: torch.Generator) -> None:
        answers.clear()
        optimizer.zero_grad()
        labels = y[batch.to(y.device)]
        losses = [loss_of(found, labels, arena.kind) for found in logits(inputs[rows.z[batch]])]
        torch.stack(losses).sum().backward()
        optimizer.step()

    def predict(place: int, asked: Tensor) -> Tensor:
        own = bool(asked[0] < known)
        if own not in answers:
            source, first = (inputs, 0) if own else (test, known)
            parts = [logits(source[part - first]) for part in asked.split(BATCH)]
            answers[own] = [torch.cat([p.cpu() for p in of]) for of in zip(*parts, strict=True)]
        return units.restore(answers[own][place])

    calls = [partial(rows.scores, partial(predict, place)) for place in range(len(choices))]
    every = torch.arange(len(y))
    for step in in_batches(arena, optimizer, train, calls[0], every, BATCH, 0.0):
        pairs = zip(costs, calls, strict=True)
        yield [step._replace(flops=step.samples * cost, scores=call) for cost, call in pairs]


SETTINGS: Searched = {"layer": layers, "head": ("linear", "mlp"), "rate": (0.01, 0.001, 0.1)}
ATTACK = Attack(settings=SETTINGS, reads=(), together=together, place=14)
