"""Known answers of the attacks that undo a defence without labels, and where they help nothing."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from helpers.arenas import arena_for, halves, image_data
from helpers.networks import Residual
from immunis.attacks import ATTACKS, BUDGETS
from immunis.attacks.adaptive.fold import fold
from immunis.attacks.adaptive.self_supervised import view
from immunis.attacks.arrays import Data, Samples
from immunis.attacks.contract import NotApplicableError
from immunis.attacks.reading import ALL, LAST, readings, reread, side_by_side
from immunis.attacks.search import search, space_of
from immunis.models.find_cut import cut

CONSTANT = 26  # inputs that many small weights may read


def best(name, model, data, only=None, budget=200, **more):
    """The test score of the best point of a search."""
    arena = arena_for(ATTACKS[name], model=model, data=data, budget=budget, **more)
    outcome = search(ATTACKS[name], arena, only=only)
    return max(outcome.points, key=lambda p: p.validation).test


def signs(seed, n=240):
    """Four random signs, of which the second is the label, and many constant inputs."""
    x = np.random.default_rng(seed).choice([-1.0, 1.0], size=(n, 4)).astype(np.float32)
    return np.pad(x, ((0, 0), (0, CONSTANT)), constant_values=1.0), (x[:, 1] > 0).astype(int)


def gated(gate):
    """Four units, the second of which reads the label; small weights on constants may shut it."""
    first = nn.Linear(4 + CONSTANT, 4)
    with torch.no_grad():
        first.weight.uniform_(0.3, 1.0)
        first.bias.fill_(0.5)
        first.weight[:, 1] = 0.0
        first.weight[1, :4] = torch.tensor([0.0, 1.0, 0.0, 0.0])
        first.weight[1, 4:] = -gate
    return nn.Sequential(first, nn.ReLU(), nn.Linear(4, 3)).eval()


@pytest.mark.parametrize(("name", "only"), [("quantise", {"bits": [4]}), ("prune", None)])
def test_a_gate_of_many_small_weights_opens(name, only):
    """Weights of −0.06 shut a unit that one weight of 1 opens; they round to nothing."""
    shut = gated(0.06)
    assert best("ridge", shut, signs) < 0.65
    assert best(name, shut, signs, only) > 0.95


@pytest.mark.parametrize("name", ["quantise", "prune", "noise_first", "primary_first"])
def test_what_is_not_in_the_inputs_is_not_found(name):
    def blind(seed):
        x, _ = signs(seed)
        return x, np.random.default_rng(seed).integers(0, 2, len(x))

    assert best(name, gated(0.0), blind, {"probe": ["ridge"]}, budget=20) < 0.65


def public(seed, n=300):
    """Primary rows: the class is in the first two signs, which the harmful label shares."""
    x, _ = signs(seed, n)
    return Data(x, (x[:, 0] > 0).astype(int) + 2 * (x[:, 1] > 0).astype(int))


PRIMARY = Samples("classification", 4, public(1), public(2))


def shut_but_trainable():
    """A unit that reads the label faintly: primary data asks for it, and descent brings it back."""
    model = nn.Sequential(nn.Linear(4 + CONSTANT, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(1.0)
        model[0].weight[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
        model[2].weight.copy_(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))
    return model


@pytest.mark.parametrize("name", ["primary_first", "noise_first"])
def test_primary_data_bring_back_what_a_defence_removed(name):
    model = shut_but_trainable()
    assert best("ridge", model, signs) < 0.65
    found = best(name, model, signs, {"probe": ["ridge"]}, budget=400, primary=PRIMARY)
    assert found > 0.9
    unrelated = Samples("classification", 2, *(Data(x, (x[:, 2] > 0).astype(int)) for x in (
        public(1).inputs, public(2).inputs)))  # fmt: skip
    if name == "primary_first":
        only = {"probe": ["ridge"], "rate": [1e-4], "read": [LAST]}
        assert best(name, model, signs, only, budget=40, primary=unrelated) < 0.65


@pytest.mark.parametrize("name", ["primary_first", "noise_first", "primary_then_finetune"])
def test_without_primary_data_there_is_nothing_to_tune_on(name):
    with pytest.raises(NotApplicableError, match="no primary data"):
        search(ATTACKS[name], arena_for(ATTACKS[name], primary=None))


def test_primary_tuning_is_paid_for():
    arena = arena_for(ATTACKS["primary_first"], budget=40)
    only = {"optimizer": ["sgd"], "rate": [0.1]}
    points = search(ATTACKS["primary_then_finetune"], arena, only=only).points
    assert points[0].steps == 16 and points[-1].steps == 40  # 15 of 20 on primary data
    assert points[0].samples == 15 * 128 + 120
    probed = search(ATTACKS["primary_first"], arena, only={"rate": [1e-3], "probe": ["ridge"]})
    assert probed.points[0].steps == 31  # 30 on primary data, one to solve
    standard = BUDGETS["standard"].of(ATTACKS["primary_first"])
    whole = dataclasses.replace(arena, budget=standard)
    probed_later = search(ATTACKS["primary_first"], whole, only={"rate": [1e-3], "probe": ["adam"]})
    assert probed_later.points[-1].steps == 300 + 250  # a probe loses no step to it
    plain = search(ATTACKS["ridge"], arena)
    assert probed.points[0].flops > 100 * plain.points[0].flops


def hidden_by_scale(factor):
    """A map whose top directions are multiplied, and divided again by the layer after it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    ).eval()
    with torch.no_grad():
        left, sizes, right = torch.linalg.svd(model[0].weight.double(), full_matrices=False)
        more = torch.where(torch.arange(len(sizes)) < 4, factor, 1.0)
        inverse = left / more @ left.T + torch.eye(16) - left @ left.T
        model[0].weight.copy_(left * (more * sizes) @ right)
        model[0].bias.copy_(left * more @ left.T @ model[0].bias.double())
        model[1].weight.copy_(model[1].weight.double() @ inverse)
    return model


def turned(seed, n=300):
    """Labels that no linear map of the inputs shows: fine-tuning must move the first layers."""
    x = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


ONE = {"optimizer": ["sgd"], "rate": [0.1]}


def test_a_defence_that_hides_by_scaling_falls_to_folding():
    hidden = hidden_by_scale(1e4)
    plain = best("finetune_all", hidden, turned, {**ONE, "rate": [0.1, 0.01]})
    assert plain < 0.75
    assert best("fold", hidden, turned, ONE) > plain + 0.15


def test_folding_gains_nothing_where_nothing_is_hidden():
    open_ = hidden_by_scale(1.0)
    both = [best(name, open_, turned, ONE) for name in ("finetune_all", "fold")]
    assert abs(both[0] - both[1]) < 0.1


class Block(nn.Module):
    """Convolutions with BatchNorm, a pointwise one, a shortcut, and a flat end."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.wide = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.narrow = nn.Conv2d(6, 4, 1)
        self.end, self.head = nn.Linear(4 * 16, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        x = x + self.narrow(self.wide(x)).relu()
        return self.head(self.end(x.flatten(1)).relu())


def test_folding_keeps_the_function_and_undoes_every_scale():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(64, 1, 4, 4)
    model(x)
    model.eval()
    with torch.no_grad():
        for one, two, factor in (("wide", "narrow", 1e3), ("end", "head", 1e-4)):
            first, second = model.get_submodule(one), model.get_submodule(two)
            for part in (first.weight, *([] if first.bias is None else [first.bias])):
                part *= factor
            second.weight /= factor
        model.stem.weight *= 1e3
        model.stem.bias *= 1e3
        model.norm.running_mean *= 1e3
        model.norm.running_var.copy_(1e6 * (model.norm.running_var + 1e-5) - 1e-5)
    whole = cut(model, x[:4], 3)
    before = model(x)
    assert fold(whole, x[:16]) > 0
    torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-4)
    assert isinstance(model.wide, nn.Identity) and model.narrow.weight.shape == (4, 4, 3, 3)
    for name in ("stem", "narrow", "end", "head"):
        assert 1e-2 < model.get_submodule(name).weight.std() < 1e1, name
    assert fold(whole, x[:16]) <= 1  # nothing much is left to do


def test_a_layer_that_two_read_keeps_its_scale():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            z = self.one(x)
            return self.head(self.two(z).tanh() + z)

    model = Fork().eval()
    with torch.no_grad():
        model.one.weight *= 100
    kept = copy.deepcopy(model.state_dict())
    assert fold(cut(model, torch.randn(4, 6), 3), torch.randn(8, 6)) == 0
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    arena = arena_for(ATTACKS["fold"], model=model)
    with pytest.raises(NotApplicableError, match="no two layers"):
        search(ATTACKS["fold"], arena)


def shifted_norm(seed=0):
    """A network whose BatchNorm statistics are far from those of the attacker's images."""
    torch.manual_seed(seed)
    model = Residual().eval()
    with torch.no_grad():
        model.norm.running_mean.fill_(50.0)  # every ReLU behind it is shut
    return model


@pytest.mark.parametrize("name", ["renormalise", "adapt", "self_supervised"])
def test_statistics_that_shut_every_unit_are_replaced_by_the_rows_own(name):
    assert best("ridge", shifted_norm(), image_data) < 0.5
    assert best(name, shifted_norm(), image_data, {"probe": ["ridge"]}) > 0.9


@pytest.mark.parametrize("name", ["renormalise", "adapt", "self_supervised"])
def test_images_without_a_label_in_them_stay_unread(name):
    def blind(seed):
        return image_data(seed=seed)[0], np.random.default_rng(seed).integers(0, 3, 150)

    assert best(name, Residual().eval(), blind, {"probe": ["ridge"]}, budget=20) < 0.55


class Gated(nn.Module):
    """A BatchNorm whose statistics are far off behind every stage but the last; a mean; a head."""

    def __init__(self, *stages):
        super().__init__()
        self.stages, self.head = nn.ModuleList(stages), nn.Linear(2, 3)
        self.norm = nn.BatchNorm2d(2, affine=False)
        self.norm.running_mean.fill_(50.0)  # every ReLU behind it is shut

    def forward(self, x):
        for stage in self.stages[:-1]:
            x = stage(x)
        return self.head(self.stages[-1](self.norm(x).relu()).mean((2, 3)))


def passing(*channels):
    """A stage that passes on the channels named, of two."""
    stage = nn.Conv2d(2, 2, 1, bias=False)
    kept = torch.tensor([float(c in channels) for c in (0, 1)])
    with torch.no_grad():
        stage.weight.copy_(kept.diag()[..., None, None])
    return stage


@pytest.mark.parametrize("name", ["renormalise", "primary_first", "self_supervised"])
def test_maps_are_read_after_the_statistics_are_set_right(name):
    """Neither undoing nor maps alone show the label: it takes both."""
    model = Gated(passing(0, 1)).eval()
    assert best("ridge", model, halves) < 0.65
    assert best("maps", model, halves, {"probe": ["ridge"]}) < 0.65
    only = {"probe": ["ridge"]}
    assert best(name, model, halves, {**only, "read": [LAST]}) < 0.7
    primary = Samples("classification", 2, *(Data(*halves(seed)) for seed in (1, 2)))
    assert best(name, model, halves, only, primary=primary) > 0.95


def shown_at(*parts):
    """Images whose label is the sum of what the named channels show, and noise."""

    def data(seed, n=400):
        rng = np.random.default_rng(seed)
        values = rng.normal(size=(n, 2)).astype(np.float32)
        x = np.repeat(values[..., None], 16, 2).reshape(n, 2, 4, 4)
        return x, (values[:, parts].sum(1) > 0).astype(int)

    return data


class Staged(nn.Module):
    """A first stage behind a shut BatchNorm passes one channel on, the last the other."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(2, affine=False), nn.Linear(2, 3)
        self.first, self.last = passing(0), passing(1)
        self.norm.running_mean.fill_(50.0)

    def forward(self, x):
        x = self.norm(x)
        return self.head((self.last(x.clamp(-5, 5)) + 0 * self.first(x.clamp(-5, 5))).mean((2, 3)))


@pytest.mark.parametrize(("parts", "read"), [((0,), "first"), ((0, 1), ALL)])
def test_every_stage_and_all_of_them_are_read_after_undoing(parts, read):
    model, data = Staged().eval(), shown_at(*parts)
    assert best("concat_blocks", model, data, {"probe": ["ridge"]}) < 0.65
    arena = arena_for(ATTACKS["renormalise"], model=model, data=data)
    found = search(ATTACKS["renormalise"], arena, only={"probe": ["ridge"]})
    assert found.points[-1].test > 0.95 and found.settings["read"] == read
    assert best("renormalise", model, data, {"probe": ["ridge"], "read": [LAST]}) < 0.85


def test_a_reading_is_what_the_layer_gives():
    arena = arena_for(ATTACKS["renormalise"], model=Residual().eval(), data=image_data)
    assert readings(arena) == (LAST, *arena.cut.stages, "layer2:maps", ALL)
    made = reread(arena, arena.cut).by_reading
    assert set(made) == set(readings(arena))
    with torch.no_grad():
        for name in readings(arena)[:-1]:
            layer = "" if name == LAST else name
            wanted = arena.cut.features(torch.from_numpy(arena.test.inputs), layer)
            np.testing.assert_allclose(made[name][1], wanted, rtol=1e-4, atol=1e-6)
    assert made[ALL][0].shape == (150, 4 + 6 + 8)


def test_wide_readings_are_projected_by_rows_of_every_class(monkeypatch):
    """Rows come by class; four columns tell one thing, and of the second class alone."""
    monkeypatch.setattr("immunis.attacks.reading.WIDEST", 3)
    monkeypatch.setattr("immunis.attacks.reading.ROWS", 40)
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    x[:, 5:] = x[:, 4:5]
    x[:100, 4:] = 0.0
    arena = arena_for(ATTACKS["ridge"])
    arena = dataclasses.replace(arena, train=Data(x, (np.arange(200) >= 100).astype(int)))
    train, test = side_by_side(arena, [(x, x[150:])])
    assert train.shape == (200, 3) and test.shape == (50, 3)
    assert abs(np.corrcoef(test[:, 0], x[150:, 4])[0, 1]) > 0.99


@pytest.mark.parametrize("widest", [3, 1024])
def test_a_copy_that_training_has_broken_loses(monkeypatch, widest):
    monkeypatch.setattr("immunis.attacks.reading.WIDEST", widest)
    arena = arena_for(ATTACKS["primary_first"], budget=20)
    broken = arena.cut.copy()
    with torch.no_grad():
        next(broken.model.parameters()).fill_(torch.nan)

    def features(arena, settings):
        return reread(arena, broken if settings["rate"] > 5e-4 else arena.cut)

    attack = dataclasses.replace(ATTACKS["primary_first"], features=features)
    found = search(attack, arena)
    assert found.points[-1].test > 0.9 and found.settings["rate"] < 5e-4
    lost = search(attack, arena, only={"rate": [1e-2]})
    assert lost.points[-1].test == 0.0
    assert any("NaN or infinite" in note for note in lost.notes)


@pytest.mark.parametrize(("name", "setting"), [
    ("self_supervised", "rate"), ("adapt", "rate"), ("noise_first", "rate"),
    ("primary_first", "rate"), ("primary_then_finetune", "primary_rate"),
])  # fmt: skip
def test_undoing_tries_three_rates_over_a_decade_or_more(name, setting):
    rates = space_of(ATTACKS[name], arena_for(ATTACKS[name]))[setting]
    assert len(rates) >= 3 and max(rates) >= 9.99 * min(rates)
    assert min(rates) < rates[0] < max(rates), "among equals the first wins, and is inside"


def test_adaptation_needs_classes_of_its_own_and_a_norm():
    with pytest.raises(NotApplicableError, match="normalisation"):
        search(ATTACKS["adapt"], arena_for(ATTACKS["ridge"]))
    arena = arena_for(ATTACKS["adapt"])
    regression = dataclasses.replace(arena.primary, kind="regression")
    with pytest.raises(NotApplicableError, match="answers with classes"):
        search(ATTACKS["adapt"], dataclasses.replace(arena, primary=regression))


@pytest.mark.parametrize("name", ["self_supervised", "augmented"])
def test_rows_of_numbers_are_no_images(name):
    with pytest.raises(NotApplicableError, match="not images"):
        search(ATTACKS[name], arena_for(ATTACKS["ridge"]))


def test_a_view_is_a_crop_of_each_image_drawn_by_the_generator():
    images = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    one, same = (view(images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert one.shape == images.shape and torch.equal(one, same)
    other = view(images, torch.Generator().manual_seed(4))
    assert not torch.equal(one, other)
    flat = torch.full((5, 1, 8, 8), 0.3)
    torch.testing.assert_close(view(flat, torch.Generator().manual_seed(0)), flat)
