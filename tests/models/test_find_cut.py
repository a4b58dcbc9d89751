"""Where a model is cut: its head, and its stages."""

import pytest
import torch
from torch import nn

from helpers.networks import Encoder, Residual, Tokens, Turned, mlp
from immunis import InputError, SettingsError
from immunis.models.find_cut import cut


def test_rows_that_are_not_their_own_are_refused():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 6)

        def forward(self, x):
            return self.layer(x) + torch.rand(len(x), 6)

    coupled = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, track_running_stats=False))
    for model, says in ((Noisy(), "from call to call"), (coupled, "more than 1 value")):
        with pytest.raises(InputError, match=says):
            cut(model.eval(), torch.randn(2, 8))


def test_a_head_is_found_by_its_width_and_features_are_its_input():
    model, x = mlp(), torch.randn(7, 4)
    found = cut(model, x, outputs=3)
    assert (found.head, found.stages, found.last_linear, found.width) == ("3", ("0", "2"), "2", 5)
    features = found.features(x)
    torch.testing.assert_close(features, model[:3](x))
    assert found.head_layer is model[3]
    assert found.last_layer is model[2]


def test_extractors_without_a_head():
    x = torch.randn(5, 4)
    theta = torch.randn(4, 4)
    found = cut(theta, x)
    torch.testing.assert_close(found.features(x), x @ theta)
    assert (found.head, found.stages, found.last_linear) == (None, ("0",), "0")
    layer = nn.Linear(4, 3).eval()
    assert cut(layer, x, outputs=3).head is None  # a single layer is an extractor
    pair = cut((layer, nn.Linear(3, 2).eval()), x)
    assert (pair.head, pair.width) == ("1", 3)


def test_a_linear_layer_in_the_middle_is_no_head():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 6)).eval()
    assert cut(model, torch.randn(2, 4), outputs=3).head is None


def test_a_part_in_training_mode_is_found():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(InputError, match="1 is in training mode"):
        cut(model, torch.randn(2, 4))


def test_timm_models_say_themselves_where_their_head_is():
    model = Residual().eval()
    model.get_classifier = lambda: model.fc
    assert cut(model, torch.randn(2, 1, 8, 8), outputs=99).head == "fc"


class Picky(nn.Module):
    """Refuses as timm's models do."""

    def forward(self, x):
        raise AssertionError(f"Input height ({len(x)}) doesn't match model (224).")


@pytest.mark.parametrize(
    ("model", "options", "error", "says"),
    [
        ("model", {}, InputError, "expected an nn.Module"),
        (nn.Linear(4, 4), {}, InputError, "training mode"),
        (nn.Linear(5, 4).eval(), {}, InputError, "cannot read inputs of shape"),
        (mlp(), {"head": "33"}, SettingsError, "linear head of m"),
        (mlp(), {"head": "1"}, SettingsError, "linear head of m"),
        (nn.Flatten(0).eval(), {}, InputError, "features have shape \\(8,\\); expected"),
        (torch.jit.trace(mlp(), torch.randn(2, 4)), {}, InputError, "the model is TorchScript"),
        (nn.Sequential(torch.jit.script(mlp())).eval(), {}, InputError, "0 is TorchScript"),
        (Picky().eval(), {}, InputError, "cannot read inputs of shape.*height"),
    ],
)
def test_what_cannot_be_cut_is_said(model, options, error, says):
    with pytest.raises(error, match=says):
        cut(model, torch.randn(2, 4), name="m", **options)


class Answering(nn.Module):
    """Two heads, of which the answers are made in one way or another."""

    def __init__(self, way):
        super().__init__()
        self.body, self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        self.other, self.words, self.way = nn.Linear(4, 3), nn.Embedding(9, 4), way

    def forward(self, x):
        x = x if x.is_floating_point() else self.words(x)
        z = self.body(x).relu()
        return self.way(self, x, z)


def added(m, x, z):
    answers = m.one(z)
    answers += m.other(x)
    return answers


@pytest.mark.parametrize("way", [added, lambda m, x, z: (m.one(z) + m.other(x)) / 2])
@pytest.mark.parametrize("rows", [torch.randn(2, 4), torch.zeros(2, 4), torch.tensor([1, 2])])
def test_a_model_that_answers_by_more_than_its_head_reads_is_refused(way, rows):
    model = Answering(way).eval().requires_grad_(False)
    with pytest.raises(InputError, match="come from more than what its head 'one'.*side by"):
        cut(model, rows, 3, head="one")
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    "way",
    [
        lambda m, x, z: torch.cat([m.one(z), m.two(z)], 1),
        lambda m, x, z: m.one(z) / (1 + z.norm(dim=1, keepdim=True)),
        lambda m, x, z: 3 * m.one(z),
    ],
)
@pytest.mark.parametrize("rows", [torch.randn(2, 4), torch.tensor([1, 2])])
def test_a_model_may_do_what_it_likes_with_what_its_head_reads(way, rows):
    assert cut(Answering(way).eval(), rows, 3, head="one").head == "one"


class Heads(nn.Module):
    """Two heads of one width."""

    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        z = self.body(x)
        return self.a(z), self.b(z)


def test_answers_are_those_of_the_head_that_was_named():
    model, inputs = Heads().eval(), torch.randn(5, 4)
    for name, answer in zip("ab", model(inputs), strict=True):
        found = cut(model, inputs[:2], outputs=3, head=name)
        assert found.bypasses_head == (name == "b")
        assert torch.equal(found.answers(inputs), answer)


def test_features_are_the_token_that_the_model_heeds():
    class Last(nn.Module):
        def __init__(self, choose):
            super().__init__()
            self.body, self.head, self.choose = nn.Linear(6, 8), nn.Linear(8, 3), choose

        def forward(self, x):
            return self.choose(self.head(self.body(x)))

    x = torch.randn(4, 5, 6)
    with pytest.raises(InputError, match="one row a sample"):
        cut(Last(lambda z: z.amax(1)).eval(), x, 3, head="head")
    found = cut(Last(lambda z: z.mean(1)).eval(), x, 3, head="head")  # linear: of the mean
    torch.testing.assert_close(found.features(x), found.model.body(x).mean(1))
    found = cut(Last(lambda z: z[:, -1]).eval(), x, 3, head="head")
    torch.testing.assert_close(found.features(x), found.model.body(x)[:, -1])
    for scaled in (lambda z: 5 * z.sum(1), lambda z: z.mean(1).log_softmax(1)):  # of the mean
        found = cut(Last(scaled).eval(), x, 3, head="head")
        torch.testing.assert_close(found.features(x), found.model.body(x).mean(1))
    blank, loud = Last(lambda z: z[:, -1]).eval(), Last(lambda z: z[:, -1]).eval()
    nn.init.zeros_(blank.head.weight)
    with pytest.raises(InputError, match="gives every token the same answer"):
        cut(blank, x, 3, head="head")
    nn.init.constant_(loud.head.bias, 60.0)  # beside which tokens differ little
    torch.testing.assert_close(cut(loud, x, 3, "head").features(x), loud.body(x)[:, -1])
    rows, which = torch.arange(4), torch.tensor([0, 4, 2, 2])  # another token of each row
    found = cut(Last(lambda z: z[rows[: len(z)], which[: len(z)]]).eval(), x, 3, head="head")
    torch.testing.assert_close(found.features(x), found.model.body(x)[rows, which])


def test_a_head_may_be_called_by_the_name_of_its_input_and_must_be_called():
    class Named(nn.Module):
        def __init__(self, plain):
            super().__init__()
            self.body, self.fc, self.plain = nn.Linear(6, 8), nn.Linear(8, 3), plain

        def forward(self, x):
            z = self.body(x)
            if self.plain:
                return nn.functional.linear(z, self.fc.weight, self.fc.bias)
            return self.fc(input=z)

    x = torch.randn(4, 6)
    whole = cut(Named(False).eval(), x, 3)
    assert torch.equal(whole.features(x), whole.model.body(x))
    with pytest.raises(InputError, match="head 'fc' is in the model but was never run"):
        cut(Named(True).eval(), x, 3, head="fc")


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
    assert found.norms == {"features.2": ("norm",)}
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
    assert (whole.head, whole.stages[-1], whole.norms) == ("3.fc", "2", {"2": ("3",)})
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
    assert (found.stages, found.norms) == (("0",), {"0": ("2",)})
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
