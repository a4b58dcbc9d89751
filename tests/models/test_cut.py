import pytest
import torch
from torch import nn

from helpers.networks import Residual
from immunis import InputError, SettingsError
from immunis.models.cut import channels_last
from immunis.models.find_head import cut
from immunis.models.zoo import reinitialise, untrained


class Tokens(nn.Module):
    """A container of blocks, as in a transformer, with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 6))
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = x + self.token
        for block in self.blocks:
            x = torch.relu(block(x)) + x
        return self.head(x.mean(1))


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 3)).eval()


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


def test_layers_are_read_by_name_at_input_or_output():
    model, x = mlp(), torch.randn(7, 4)
    found = cut(model, x, 3)
    inner, before, features = (found.features(x, layer) for layer in ("0", "2:in", ""))
    torch.testing.assert_close(inner, model[0](x))
    torch.testing.assert_close(before, model[1](model[0](x)))
    torch.testing.assert_close(features, model[:3](x))


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


def test_a_convolutional_network_and_pooling():
    x = torch.randn(5, 1, 8, 8)
    found = cut(Residual().eval(), x, outputs=3)
    assert found.head == "fc"
    assert found.stages == ("stem", "layer1", "layer2")
    assert found.trailing == ()
    assert found.last_linear is None
    assert found.features(x, "layer1").shape == (5, 6)


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


class Encoder(nn.Module):
    """As transformers has it: a list of blocks inside a module, and positions of their own."""

    def __init__(self):
        super().__init__()
        self.embeddings, self.positions = nn.Embedding(10, 6), nn.Embedding(3, 6)
        self.layer = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        z = self.embeddings(x) + self.positions(torch.arange(3))[None]
        for layer in self.layer:
            z = z + torch.tanh(layer(z))
        return z


def test_a_list_of_blocks_inside_a_module_is_opened():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.pooler, self.fc = Encoder(), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.fc(torch.tanh(self.pooler(self.base(x)[:, 0])))

    found = cut(Text().eval(), torch.randint(10, (5, 3)), outputs=2)
    assert found.stages == ("base.embeddings", "base.layer.0", "base.layer.1", "pooler")


class Clamped(Encoder):
    """Token ids outside its vocabulary mean something to it."""

    def forward(self, x):
        return super().forward(x.clamp(0, 9))


@pytest.mark.parametrize(("token", "told"), [(10, "from 0 to 10"), (-1, "from -1 to")])
def test_a_token_that_no_embedding_knows_is_told(token, told):
    model = nn.Sequential(Encoder(), nn.Flatten(), nn.Linear(18, 2)).eval()
    words = torch.randint(1, 10, (5, 3))
    words[0, 0] = 0
    words[4, 1] = token
    with pytest.raises(InputError, match=f"token ids {told}.*index out of range"):
        cut(model, words, outputs=2)
    masked = nn.Sequential(Clamped(), nn.Flatten(), nn.Linear(18, 2)).eval()
    assert cut(masked, words, outputs=2).head == "2"  # it knows what to do with them


def test_a_layer_of_two_names_is_trained_whole_by_either():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.fc = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.b.weight, self.c = self.a.weight, self.a

        def forward(self, x):
            return self.fc(self.c(torch.relu(self.b(torch.relu(self.a(x))))))

    found = cut(Tied().eval(), torch.randn(3, 4), outputs=2)
    assert found.parameters_named(["b"]) == ["a.weight", "b.bias"]
    assert found.parameters_named(["c"]) == ["a.weight", "a.bias"]
    model = Tied()
    model.fc = nn.Linear(4, 4)
    model.fc.weight = model.b.weight
    assert cut(model.eval(), torch.randn(3, 4), 4).parameters_named(["b"]) == ["a.weight", "b.bias"]


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


def test_a_linear_layer_in_the_middle_is_no_head():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 6)).eval()
    assert cut(model, torch.randn(2, 4), outputs=3).head is None


def test_a_part_in_training_mode_is_found():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(InputError, match="1 is in training mode"):
        cut(model, torch.randn(2, 4))


def test_custom_norms_start_at_one():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4,), 3.0))
            self.bias = nn.Parameter(torch.full((4,), 3.0))

        def forward(self, x):
            return x * self.weight + self.bias

    fresh = untrained(cut(nn.Sequential(nn.Linear(4, 4), Norm()).eval(), torch.randn(2, 4)), 0)
    assert torch.equal(fresh.model[1].weight, torch.ones(4))
    assert torch.equal(fresh.model[1].bias, torch.zeros(4))


def test_timm_models_say_themselves_where_their_head_is():
    model = Residual().eval()
    model.get_classifier = lambda: model.fc
    assert cut(model, torch.randn(2, 1, 8, 8), outputs=99).head == "fc"


def test_the_untrained_control_shares_nothing_but_the_architecture():
    for model, x in (
        (Residual().eval(), torch.randn(2, 1, 8, 8)),
        (Tokens().eval(), torch.ones(2, 3, 6)),
    ):
        source = cut(model, x)
        fresh = untrained(source, 1)
        again = untrained(source, 1)
        for (name, old), new, same in zip(
            model.named_parameters(),
            fresh.model.parameters(),
            again.model.parameters(),
            strict=True,
        ):
            assert torch.equal(new, same), name
            if "norm" not in name:
                assert not torch.equal(new, old), name
        assert not fresh.model.training


def test_reinitialising_leaves_the_global_generator_alone():
    layer = nn.Linear(2, 2)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    reinitialise(layer, 0)
    assert torch.equal(torch.rand(1), expected)


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


def test_outputs_that_are_no_tensor():
    class Output:
        last_hidden_state = torch.ones(2, 3, 4)
        pooler_output = None

    class Encoder(nn.Module):
        def __init__(self, result):
            super().__init__()
            self.result = result

        def forward(self, x):
            return self.result

    assert cut(Encoder(Output()).eval(), torch.ones(2, 1)).width == 4
    with pytest.raises(InputError, match="returns dict"):
        cut(Encoder({}).eval(), torch.ones(2, 1))


class Swinish(nn.Module):
    """Channels last inside, as timm's Swin has them, and says so."""

    output_fmt = "NHWC"

    def __init__(self):
        super().__init__()
        self.stem, self.stage, self.norm = nn.Linear(3, 6), nn.Linear(6, 10), nn.LayerNorm(10)
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        return self.head(self.norm(self.stage(self.stem(x.permute(0, 2, 3, 1)))).mean((1, 2)))


def test_channels_last_features_are_pooled_over_positions():
    whole = cut(Swinish().eval(), torch.randn(2, 3, 8, 8), 4)
    x = torch.randn(5, 3, 8, 8)
    widths = [whole.features(x, layer).shape[1] for layer in ("", *whole.stages)]
    assert widths == [10, 6, 10]


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


def test_answers_in_a_dictionary_are_read():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 4)

        def forward(self, x):
            return {"logits": self.head(self.body(x))}

    assert cut(Named().eval(), torch.randn(2, 5), 4).head == "head"


class Turned(nn.Module):
    """Blocks that have their samples second, as PyTorch's transformers do by default."""

    def __init__(self):
        super().__init__()
        self.proj, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        z = self.proj(x).transpose(0, 1)
        for block in self.blocks:
            z = z + torch.tanh(block(z))
        return self.head(z.mean(0))


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


@pytest.mark.parametrize("rows", [2, 5])
def test_blocks_that_have_samples_second_are_stages_and_pooled_by_tokens(rows):
    model, inputs = Turned().eval(), torch.randn(rows, 5, 4)
    found = cut(model, inputs[:2], outputs=3)
    assert found.stages == ("proj", "blocks.0", "blocks.1")
    read = found.features(inputs, "blocks.1")
    seen = found.capture(inputs, ["blocks.1"])["blocks.1"]
    assert seen.shape == (5, rows, 6)
    assert torch.allclose(read, seen.mean(0))


class Last(nn.Module):
    """Channels last, as Swin has it: positions twice as many as channels."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 1), nn.LayerNorm(4)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        z = self.norm(self.stem(x).permute(0, 2, 3, 1))
        return self.head(self.c(torch.relu(self.b(torch.relu(self.a(z))))).mean((1, 2)))


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


def test_tokens_made_by_a_convolution_have_their_channels_last():
    class Patches(nn.Conv2d):
        def forward(self, x):
            return super().forward(x).flatten(2).mT

    layer = Patches(3, 16, 2)
    found = layer(torch.randn(2, 3, 8, 8)[..., :5, :5])
    assert found.shape == (2, 16, 16)
    assert channels_last(layer, found) is None


def test_a_layers_parts_say_where_its_channels_are():
    found = cut(Last().eval(), torch.randn(2, 3, 8, 8), outputs=3)
    assert found.stages == ("stem", "a", "b", "c")
    x = torch.randn(5, 3, 8, 8)
    assert [found.features(x, stage).shape[1] for stage in found.stages] == [4] * 4
    line = nn.Sequential(
        nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 5, 1), nn.Flatten(),
        nn.Linear(35, 2),
    ).eval()  # fmt: skip
    found = cut(line, torch.randn(2, 3, 7), outputs=2)
    inputs = torch.randn(5, 3, 7)
    assert torch.equal(found.features(inputs, "3"), found.capture(inputs, ["3"])["3"].mean(2))


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


def test_wildcards_choose_modules_too():
    found = cut(Turned().eval(), torch.randn(2, 5, 4), outputs=3)
    assert found.parameters_named(["blocks.[1]"]) == ["blocks.1.weight", "blocks.1.bias"]
    assert len(found.parameters_named(["blocks.?"])) == 4
    assert found.parameters_named(["*.bias"]) == ["proj.bias", "blocks.0.bias", "blocks.1.bias"]


def test_an_extractor_may_return_more_than_a_tensor_where_a_head_is_beside_it():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 6)

        def forward(self, x):
            return {"last_hidden_state": self.layer(x)}

    head = nn.Linear(6, 2).eval()
    found = cut((Named().eval(), head), torch.randn(2, 5, 4))
    assert found.stages == ("0",)
    assert found.answers(torch.randn(3, 5, 4)).shape == (3, 2)
    inputs = torch.randn(3, 4, 5, 8)
    for permuted in ((0, 1, 2, 3), (0, 3, 1, 2)):  # channels last, and second

        class Images(nn.Linear):
            def forward(self, x, order=permuted):
                return super().forward(x).permute(order)

        layer = Images(8, 6).eval()
        expected = head(nn.functional.linear(inputs, layer.weight, layer.bias).mean((1, 2)))
        found = cut((nn.Sequential(layer).eval(), head), inputs[:2])
        assert torch.allclose(found.answers(inputs), expected, atol=1e-6)


class TestModelsOfManyMakes:
    def test_features_are_the_token_that_the_model_heeds(self):
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
        with pytest.raises(InputError, match="answers all of them alike"):
            cut(blank, x, 3, head="head")
        nn.init.constant_(loud.head.bias, 60.0)  # beside which tokens differ little
        torch.testing.assert_close(cut(loud, x, 3, "head").features(x), loud.body(x)[:, -1])
        rows, which = torch.arange(4), torch.tensor([0, 4, 2, 2])  # another token of each row
        found = cut(Last(lambda z: z[rows[: len(z)], which[: len(z)]]).eval(), x, 3, head="head")
        torch.testing.assert_close(found.features(x), found.model.body(x)[rows, which])

    def test_normalisation_layers_of_other_libraries_are_no_stages(self):
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

    def test_what_is_never_called_itself_is_opened(self):
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

    def test_a_head_may_be_called_by_the_name_of_its_input_and_must_be_called(self):
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
