"""Stages are the blocks that produce the features, in the order they run."""

import pytest
import torch
from torch import nn

from helpers.networks import Encoder, Tokens, Turned
from immunis import InputError
from immunis.models.find_head import cut


def test_a_container_of_blocks_is_opened():
    x = torch.randn(5, 3, 6)
    found = cut(Tokens().eval(), x, outputs=2)
    assert found.stages == ("blocks.0", "blocks.1", "blocks.2", "blocks.3")
    assert found.features(x, "blocks.0").shape == (5, 6)


class Sideways(nn.Module):
    """Blocks defined in another order than they run in, a second head, a decoder nobody reads."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(8, 8), nn.Linear(4, 8)
        self.fc, self.aux, self.decoder = nn.Linear(8, 3), nn.Linear(8, 5), nn.Linear(8, 4)

    def forward(self, x):
        z = torch.relu(self.last(torch.relu(self.first(x))))
        self.decoder(z)
        return self.fc(z), self.aux(z)


@pytest.mark.parametrize("frozen", [False, True])
def test_stages_are_what_features_come_through_in_the_order_they_run(frozen):
    model = Sideways().eval().requires_grad_(not frozen)
    found = cut(model, torch.randn(3, 4), outputs=3)
    assert (found.head, found.stages) == ("fc", ("first", "last"))
    assert found.parameters_named(()) == ["last.weight", "last.bias"]
    assert {p.requires_grad for p in model.parameters()} == {not frozen}


def test_stages_that_autograd_cannot_see_are_found_by_their_outputs():
    with torch.inference_mode():
        model = Sideways().eval()
        found = cut(model, torch.randn(3, 4), outputs=3)
    assert found.stages == ("first", "last")


def test_a_list_of_blocks_inside_a_module_is_opened():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.pooler, self.fc = Encoder(), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.fc(torch.tanh(self.pooler(self.base(x)[:, 0])))

    found = cut(Text().eval(), torch.randint(10, (5, 3)), outputs=2)
    assert found.stages == ("base.embeddings", "base.layer.0", "base.layer.1", "pooler")


class Wrapped(nn.Module):
    """Blocks, a trailing norm, an unused layer, and a head inside a container."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.norm = nn.LayerNorm(8)
        self.aux = nn.Linear(8, 3)
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(8, 3))

    def forward(self, x):
        return self.classifier(self.norm(self.features(x)))


def test_a_wrapped_head_a_trailing_norm_and_an_unused_layer_are_no_stages():
    found = cut(Wrapped().eval(), torch.randn(3, 4), outputs=3)
    assert found.head == "classifier.1"
    assert found.stages == ("features.0", "features.2")
    assert found.trailing == ("norm",)
    with pytest.raises(InputError, match="never run"):
        found.features(torch.randn(3, 4), "aux")


def test_torchs_own_transformer_can_be_cut():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    )
    found = cut(model.eval(), torch.randn(3, 5, 4))
    assert found.width == 8


def test_a_norm_inside_the_heads_block_is_no_stage():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 4)

        def forward(self, x):
            return self.fc(self.norm(x))

    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), Block()).eval()
    whole = cut(model, torch.randn(2, 5), 4)
    assert (whole.head, whole.stages[-1], whole.trailing) == ("3.fc", "2", ("3",))
    names = whole.parameters_named(())
    assert names == ["2.weight", "2.bias", "3.norm.weight", "3.norm.bias"]


class Branches(nn.Module):
    """Two branches side by side, each of two blocks in a list, and what joins them."""

    def __init__(self):
        super().__init__()
        self.left, self.right = self.branch(), self.branch()

    def branch(self):
        return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6)) for _ in range(2)))

    def forward(self, x):
        return torch.cat([self.left(x), self.right(x)], 1)


class Backbone(nn.Module):
    """Stages of its own, the last of them of parallel branches, without a head."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.mixed = nn.Linear(4, 6), nn.Linear(6, 6), Branches()

    def forward(self, x):
        return self.mixed(self.b(self.a(x).relu()).relu())


class Behind(nn.Module):
    """A backbone and a head, as many a model is made."""

    def __init__(self):
        super().__init__()
        self.backbone, self.fc = Backbone(), nn.Linear(12, 3)

    def forward(self, x):
        return self.fc(self.backbone(x))


def test_a_wrapped_backbone_has_its_own_stages_and_branches_stay_together():
    inner = ("a", "b", "mixed")
    found = cut(Behind().eval(), torch.randn(2, 4), 3)
    assert found.stages == tuple(f"backbone.{name}" for name in inner)
    pair = cut((Backbone().eval(), nn.Linear(12, 3).eval()), torch.randn(2, 4))
    assert pair.stages == tuple(f"0.{name}" for name in inner)
    twice = cut(nn.DataParallel(Behind()).eval(), torch.randn(2, 4), 3)
    assert twice.stages == tuple(f"module.backbone.{name}" for name in inner)
    alone = cut((Branches().eval(), nn.Linear(12, 3).eval()), torch.randn(2, 6))
    assert alone.stages == ("0",)


class Towers(Backbone):
    """Two ways side by side, each of two blocks."""

    def __init__(self):
        super().__init__()
        self.c, self.mixed = nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, x):
        return torch.cat([self.b(self.a(x).relu()), self.mixed(self.c(x).relu())], 1)


class Shortcut(Backbone):
    """A block whose shortcut runs first, and lists of blocks that are not called."""

    def __init__(self):
        super().__init__()
        self.mixed, self.short = nn.ModuleList([nn.Linear(6, 12)]), nn.Linear(4, 12)

    def forward(self, x):
        short = self.short(x)
        return short + self.mixed[0](self.b(self.a(x).relu()).relu())


@pytest.mark.parametrize("body", [Towers, Shortcut])
def test_ways_side_by_side_are_one_stage(body):
    assert cut((body().eval(), nn.Linear(12, 3).eval()), torch.randn(2, 4)).stages == ("0",)


@pytest.mark.parametrize("rows", [2, 5])
def test_blocks_that_have_samples_second_are_stages_and_pooled_by_tokens(rows):
    model, inputs = Turned().eval(), torch.randn(rows, 5, 4)
    found = cut(model, inputs[:2], outputs=3)
    assert found.stages == ("proj", "blocks.0", "blocks.1")
    read = found.features(inputs, "blocks.1")
    seen = found.capture(inputs, ["blocks.1"])["blocks.1"]
    assert seen.shape == (5, rows, 6)
    assert torch.allclose(read, seen.mean(0))


def test_a_sequence_of_blocks_inside_a_module_is_opened_and_one_that_ends_in_the_head():
    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            block = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)]
            self.layers = nn.Sequential(*block)

        def forward(self, x):
            return self.layers(x)

    model = nn.Sequential()
    model.add_module("body", Body())
    model.add_module("classifier", nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    found = cut(model.eval(), torch.randn(2, 4), outputs=3)
    assert found.head == "classifier.2"
    assert found.stages == ("body.layers.0", "body.layers.1", "classifier.0")


def test_normalisation_layers_of_other_libraries_are_no_stages():
    class MyRMSNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), MyRMSNorm(8), nn.Linear(8, 3)).eval()
    found = cut(model, torch.randn(4, 6), 3)
    assert (found.stages, found.trailing) == (("0",), ("2",))
    assert found.parameters_named(()) == ["0.weight", "0.bias", "2.weight"]


def test_what_is_never_called_itself_is_opened():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({"a": nn.Linear(6, 8), "b": nn.Linear(8, 8)})
            self.parts["c"] = self.parts["b"]  # one layer under two names is one stage
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.parts["c"](self.parts["a"](x).relu()).relu())

    found = cut(Parts().eval(), torch.randn(4, 6), 3)
    assert found.stages == ("parts.a", "parts.b")
    assert found.parameters_named(()) == ["parts.b.weight", "parts.b.bias"]
