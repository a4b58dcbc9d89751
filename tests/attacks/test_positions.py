"""Known answers of the attacks that read positions and tokens, several views and several stages."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers.arenas import arena_for, halves, separable, token_data
from helpers.networks import Tokens
from immunis.attacks import ATTACKS
from immunis.attacks.contract import NotApplicableError
from immunis.attacks.search import curves, search, space_of


def best(name, model, data, only=None, budget=200):
    arena = arena_for(ATTACKS[name], model=model, data=data, budget=budget)
    outcome = search(ATTACKS[name], arena, only=only)
    return max(outcome.points, key=lambda p: p.validation).test


class Seen(nn.Module):
    """A stage that passes images or tokens on, a mean over positions, and a head."""

    def __init__(self, width, tokens=False):
        super().__init__()
        self.stage = nn.Linear(width, width) if tokens else nn.Conv2d(width, width, 1)
        self.head, self.tokens = nn.Linear(width, 3), tokens
        with torch.no_grad():
            self.stage.weight.copy_(torch.eye(width).reshape(self.stage.weight.shape))
            self.stage.bias.zero_()

    def forward(self, x):
        z = self.stage(x)
        return self.head(z.mean(1) if self.tokens else z.mean((2, 3)))


def marked(seed, n=400):
    """One of sixteen positions is marked, anywhere; the value there is the label."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 2, 4, 4), np.float32)
    x[:, 0] = rng.choice([-1.0, 1.0], size=(n, 4, 4))
    place = rng.integers(0, 16, n)
    x[:, 1].reshape(n, 16)[np.arange(n), place] = 4.0
    return x, (x[:, 0].reshape(n, 16)[np.arange(n), place] > 0).astype(int)


def balanced(seed, n=200):
    """The first token tells the class, and the others take it out of the mean."""
    x, y = separable(n, seed)
    others = np.repeat(-x[:, None] / 3, 3, 1)
    noise = np.random.default_rng(seed).normal(size=others.shape) * 3
    return np.concatenate([x[:, None], others + noise - noise.mean(1, keepdims=True)], 1).astype(
        np.float32
    ), y


@pytest.mark.parametrize("probe", ["ridge", "logistic", "mlp"])
def test_maps_show_what_their_mean_hides(probe):
    assert best("ridge", Seen(2).eval(), halves) < 0.65
    assert probe in space_of(ATTACKS["maps"], arena_for(ATTACKS["maps"]))["probe"]
    assert best("maps", Seen(2).eval(), halves, {"probe": [probe]}) > 0.95


def test_a_query_finds_the_position_that_tells():
    model = Seen(2).eval()
    assert best("ridge", model, marked) < 0.75
    assert best("maps", model, marked, {"probe": ["ridge"]}) < 0.75
    assert best("attention_pool", model, marked) > 0.95


class Dropping(Seen):
    """A second stage drops the first channel; the last features know the marks alone."""

    def __init__(self):
        super().__init__(2)
        self.last = nn.Conv2d(2, 2, 1, bias=False)
        with torch.no_grad():
            self.last.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0]])[..., None, None])

    def forward(self, x):
        return self.head(self.last(self.stage(x)).mean((2, 3)))


def test_attention_reads_every_stage():
    model = Dropping().eval()
    arena = arena_for(ATTACKS["attention_pool"], model=model, data=marked)
    assert space_of(ATTACKS["attention_pool"], arena)["layer"] == ("stage", "last")
    assert best("attention_pool", model, marked, {"layer": ["last"]}) < 0.65
    assert best("attention_pool", model, marked) > 0.95


def test_attention_feeds_a_small_network_too():
    """The label is whether two values agree, which no linear head reads, wherever it looks."""

    def agreeing(seed, n=600):
        x = np.random.default_rng(seed).choice([-1.0, 1.0], size=(n, 2, 1, 1))
        return x.repeat(4, 2).astype(np.float32), (x[:, 0] == x[:, 1]).astype(int).ravel()

    model = Seen(2).eval()
    assert best("attention_pool", model, agreeing, {"head": ["linear"]}) < 0.65
    assert best("attention_pool", model, agreeing, {"head": ["mlp"]}) > 0.95


def test_one_pass_through_the_network_serves_every_choice_of_attention():
    passes = []
    model = Seen(2).eval()
    model.stage.register_forward_hook(lambda *_: passes.append(1))
    arena = arena_for(ATTACKS["attention_pool"], model=model, data=marked, budget=10)
    choices = [{"layer": "stage", "head": "mlp", "rate": rate} for rate in (0.1, 0.01, 0.001)]
    counts = []
    for given in (choices, choices[:1]):
        passes.clear()
        curves(ATTACKS["attention_pool"], arena, given)
        counts.append(len(passes))
    assert counts[0] == counts[1]


def test_the_first_token_tells_what_the_mean_hides():
    model = Seen(6, tokens=True).eval()
    assert best("ridge", model, balanced) < 0.5
    assert best("class_token", model, balanced, {"probe": ["ridge"]}) > 0.9
    assert best("maps", model, balanced, {"probe": ["ridge"]}) > 0.9


class Blinkered(nn.Module):
    """Sees the left half of an image alone."""

    def __init__(self):
        super().__init__()
        self.stage, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.stage(x * (torch.arange(8) < 4)).relu().mean((2, 3)))


def test_a_mirror_image_shows_the_other_half():
    def right(seed, n=200):
        x = np.random.default_rng(seed).normal(size=(n, 1, 8, 8)).astype(np.float32) / 10
        y = np.arange(n) % 2
        x[..., 6:] += (2 * y - 1)[:, None, None, None]
        return x, y

    torch.manual_seed(0)
    model = Blinkered().eval()
    assert best("ridge", model, right) < 0.65
    assert best("augmented", model, right, {"probe": ["ridge"]}) > 0.95


class Split(nn.Module):
    """Four stages; the first and the third each pass one input on that the others drop."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(3, 1) for _ in range(4))
        self.head = nn.Linear(1, 3)
        with torch.no_grad():
            for number, stage in enumerate(self.stages):
                stage.weight.copy_(torch.eye(3)[[min(number, 2)]])
                stage.bias.zero_()

    def forward(self, x):
        z = [stage(x) for stage in self.stages]
        return self.head(z[3] + 0 * sum(z))


def test_all_stages_side_by_side_show_what_no_two_neighbours_do():
    def both(seed, n=300):
        x = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
        return x, (x[:, 0] + x[:, 2] > 0).astype(int)

    model = Split().eval()
    arena = arena_for(ATTACKS["concat_blocks"], model=model, data=both)
    assert space_of(ATTACKS["concat_blocks"], arena)["blocks"] == (2, 4)
    found = {
        blocks: best("concat_blocks", model, both, {"blocks": [blocks], "probe": ["ridge"]})
        for blocks in (2, 4)
    }
    assert found[2] < 0.85 < 0.95 < found[4]


def test_positions_that_tell_nothing_are_not_read():
    def blind(seed):
        return marked(seed)[0], np.random.default_rng(seed).integers(0, 2, 400)

    model = Seen(2).eval()
    for name, only in (("maps", {"probe": ["ridge"]}), ("attention_pool", {"rate": [0.01]})):
        assert best(name, model, blind, only, budget=50) < 0.6


@pytest.mark.parametrize(
    ("name", "model", "data"),
    [
        ("maps", None, separable),
        ("class_token", None, separable),
        ("class_token", Seen(2).eval(), halves),
        ("attention_pool", None, separable),
    ],
)
def test_models_without_positions_or_tokens_are_no_case(name, model, data):
    arena = arena_for(ATTACKS["ridge"], model=model, data=data)
    with pytest.raises(NotApplicableError, match="no stage gives"):
        search(ATTACKS[name], arena)


def test_maps_of_many_stages_are_read_at_the_first_the_last_and_some_between():
    model = nn.Sequential(*[nn.Conv2d(1, 1, 1) for _ in range(9)], nn.AdaptiveAvgPool2d(1))
    model = nn.Sequential(*model, nn.Flatten(), nn.Linear(1, 3)).eval()
    arena = arena_for(ATTACKS["maps"], model=model)
    assert len(arena.cut.positioned) == 9
    assert space_of(ATTACKS["maps"], arena)["layer"] == ("0", "2", "4", "6", "8")
    assert set(arena.cache) == {f"{stage}:maps" for stage in "02468"}


def test_every_stage_of_tokens_is_read():
    arena = arena_for(ATTACKS["class_token"], model=Tokens(3).eval(), data=token_data)
    assert len(space_of(ATTACKS["class_token"], arena)["layer"]) == len(arena.cut.stages) == 4
