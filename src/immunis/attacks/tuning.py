"""How attackers train a network further, as a professional does it.

Warm-up and cosine, SGD or AdamW, weight decay, smaller rates for lower stages, label smoothing,
augmented images, and an average of the weights beside the last ones. ``TUNING`` is what the search
tries of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from immunis.attacks.arrays import in_blocks, tensor
from immunis.attacks.contract import Arena, NotApplicableError, Searched, Settings, Step
from immunis.attacks.features import Scores
from immunis.attacks.learning import Units, in_batches, loss_of
from immunis.data.loader import fits
from immunis.data.transforms import augmented, coloured
from immunis.models.cut import Cut
from immunis.theory.scores import row_hits, score_of

BATCH = 128  # samples of a step
WARM_UP = 0.05  # share of the steps
AVERAGED = 0.1  # share of the steps that the average of the weights spans
MOST_NORM = 5.0  # of a gradient
ADAMW = 0.01  # AdamW's rate over SGD's, and SGD's decay over AdamW's
TUNING: Searched = {
    "optimizer": ("sgd", "adamw"),
    "rate": (0.1, 0.01, 1.0, 0.001),  # of SGD; AdamW takes a hundredth
    "decay": (0.01, 0.1),  # of AdamW; SGD takes a hundredth
    "layer_decay": (1.0, 0.7),  # a stage's rate over that of the stage above
    "smoothing": lambda arena: (0.0, 0.1) if arena.kind == "classification" else (0.0,),
    "augment": lambda arena: (False, True) if arena.train.inputs.ndim == 4 else (False,),  # images
}


class Network(nn.Module):
    """A copy of the arena's model, or ``cut``, with a fresh head for the attacker's task.

    The head reads the features, or the pooled output of ``layer``.
    """

    def __init__(self, arena: Arena, cut: Cut | None = None, layer: str = "") -> None:
        super().__init__()
        self.cut = arena.cut.copy() if cut is None else cut
        self.body, self.layer, like = self.cut.model, layer, self.cut.example
        if not any(True for _ in self.body.parameters()):
            raise NotApplicableError("the extractor has no parameters to train")
        width = self.cut.width
        if layer:
            with torch.no_grad():
                width = self.cut.features(tensor(arena.train.inputs[:2]), layer).shape[1]
        self.head = nn.Linear(width, arena.outputs, dtype=like.dtype, device=like.device)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the attacker's logits."""
        return self.head(self.cut.features(inputs, self.layer))

    def within(self, stages: Iterable[str]) -> list[nn.Parameter]:
        """Return the parameters of the named stages."""
        return [p for stage in stages for p in self.body.get_submodule(stage).parameters()]

    def depths(self) -> dict[int, int]:
        """Return how many stages are above each parameter of the body, by the parameter's id.

        What belongs to no stage goes with the one before it, or is below all of them.
        """
        stages, found, place = self.cut.stages, dict[int, int](), -1
        for name, parameter in self.body.named_parameters():
            inside = [i for i, stage in enumerate(stages) if f"{name}.".startswith(f"{stage}.")]
            place = max(inside, default=place)
            found[id(parameter)] = len(stages) - place
        return found


class Average:
    """An exponential moving average of a network's trained parameters and running statistics."""

    def __init__(self, network: nn.Module, budget: int) -> None:
        self.live = [p.detach() for p in network.parameters() if p.requires_grad]
        self.live += [b for b in network.buffers() if b.is_floating_point()]
        self.mean = [p.clone() for p in self.live]
        self.span, self.steps = max(1.0, AVERAGED * budget), 0

    def update(self) -> None:
        """Take the present weights in: the mean spans a tenth of the steps, and of those done."""
        self.steps += 1
        share = 1 / (1 + min(self.span, AVERAGED * self.steps))
        get_ema_multi_avg_fn(1 - share)(self.mean, self.live, self.steps)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the network be the average for a while."""
        kept = [p.clone() for p in self.live]
        _copy(self.live, self.mean)
        try:
            yield
        finally:
            _copy(self.live, kept)


def _copy(into: list[Tensor], values: list[Tensor]) -> None:
    for one, other in zip(into, values, strict=True):
        one.copy_(other)


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
    labels. ``spent`` are operations made beforehand. A step scores the weights and their average,
    and the better one by validation counts.
    """
    chosen = {id(p) for p in trainable}
    for p in network.body.parameters():
        p.requires_grad_(id(p) in chosen)
    network.to(arena.device).train()
    optimizer, average = _optimizer(network, settings), Average(network, arena.budget)
    inputs, labels = tensor(arena.train.inputs), arena.labels(arena.train.labels)
    if fits(inputs.nbytes, arena.device):
        inputs = inputs.to(arena.device)
    fit = torch.from_numpy(arena.rows[0])
    units = Units(labels[fit], arena.kind)
    active = [p for p in network.parameters() if p.requires_grad]

    def train(rows: Tensor, generator: torch.Generator) -> None:
        x = inputs[rows.to(inputs.device)].to(arena.device)
        if settings["augment"]:
            x = coloured(augmented(x, generator), generator)
        optimizer.zero_grad()
        outputs = network(x)
        known = units.strip(labels[rows]).to(outputs.device)
        loss = loss_of(outputs, known, arena.kind, settings["smoothing"])
        if teacher is not None:
            soft = units.strip(teacher(rows)).to(outputs)
            soft = soft.softmax(1) if arena.kind == "classification" else soft
            loss = loss + loss_of(outputs, soft, arena.kind)
        loss.backward()
        nn.utils.clip_grad_norm_(active, MOST_NORM)
        optimizer.step()
        average.update()

    def scored(validation: float) -> Scores:
        hits = _hits(arena, network, units, "test")
        return Scores(validation, score_of(hits), hits.numpy())

    def scores() -> Scores:
        network.eval()
        try:
            held = score_of(_hits(arena, network, units, "validation"))
            with average.in_place():
                averaged = score_of(_hits(arena, network, units, "validation"))
                if averaged > held:
                    return scored(averaged)
            return scored(held)
        finally:
            network.train()

    return in_batches(arena, optimizer, train, scores, fit, BATCH, spent, WARM_UP)


def _optimizer(network: Network, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimizer of what is trained: the head at the full rate, lower stages at less."""
    depths, groups = network.depths(), dict[int, list[nn.Parameter]]()
    for p in network.parameters():
        if p.requires_grad:
            groups.setdefault(depths.get(id(p), 0), []).append(p)
    rate, decay, below = settings["rate"], settings["decay"], settings["layer_decay"]

    def at(size: float) -> list[dict[str, object]]:
        return [{"params": ps, "lr": size * below**depth} for depth, ps in groups.items()]

    if settings["optimizer"] == "sgd":
        return torch.optim.SGD(at(rate), momentum=0.9, nesterov=True, weight_decay=ADAMW * decay)
    return torch.optim.AdamW(at(ADAMW * rate), weight_decay=decay)


def _hits(arena: Arena, network: Network, units: Units, part: str) -> Tensor:
    """Return how the network answers each of the validation rows, or of the test data."""
    data, rows = (arena.test, None) if part == "test" else (arena.train, arena.rows[1])
    outputs = torch.cat([network(block).cpu() for block in in_blocks(data.inputs, rows)])
    labels = data.labels if rows is None else data.labels[rows]
    return row_hits(units.restore(outputs), arena.labels(labels), arena.kind)
