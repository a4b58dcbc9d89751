"""Features at any layer, pooled; parameters by pattern."""

import pytest
import torch
from torch import nn

from helpers.networks import Encoder, Residual, Turned, mlp
from immunis import InputError
from immunis.models.find_cut import cut
from immunis.models.positions import channels_last


def test_layers_are_read_by_name_at_input_or_output():
    model, x = mlp(), torch.randn(7, 4)
    found = cut(model, x, 3)
    stage, first, before, features = (
        found.features(x, layer) for layer in ("0", "1:in", "2:in", "")
    )
    torch.testing.assert_close(stage, model[:2](x))  # a stage, behind its activation
    torch.testing.assert_close(first, model[0](x))
    torch.testing.assert_close(before, model[1](model[0](x)))
    torch.testing.assert_close(features, model[:3](x))


def test_a_convolutional_network_and_pooling():
    x = torch.randn(5, 1, 8, 8)
    found = cut(Residual().eval(), x, outputs=3)
    assert found.head == "fc"
    assert found.stages == ("stem", "layer1", "layer2")
    assert found.norms == {"stem": ("norm",)}
    assert found.last_linear is None
    assert found.features(x, "layer1").shape == (5, 6)


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


def test_answers_in_a_dictionary_are_read():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 4)

        def forward(self, x):
            return {"logits": self.head(self.body(x))}

    assert cut(Named().eval(), torch.randn(2, 5), 4).head == "head"


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


def test_maps_are_all_that_a_stage_gives_and_first_is_its_first_token():
    x = torch.randn(5, 1, 8, 8)
    network = Residual().eval()
    found = cut(network, x, outputs=3)
    assert found.positioned == ("stem", "layer1", "layer2") and found.token_stages == ()
    stage = network.norm(network.stem(x)).relu()
    rows = found.features(x, "stem:maps")
    torch.testing.assert_close(rows, stage.movedim(1, -1).flatten(1))
    torch.testing.assert_close(rows.reshape(5, 64, 4).mean(1), found.features(x, "stem"))


def test_several_layers_are_read_in_one_pass():
    passes, x, network = [], torch.randn(5, 1, 8, 8), Residual().eval()
    found = cut(network, x, outputs=3)
    network.stem.register_forward_hook(lambda *_: passes.append(1))
    layers = ("", "stem", "layer2:maps")
    several = found.features_at(x, layers)
    assert passes == [1]
    for layer in layers:
        torch.testing.assert_close(several[layer], found.features(x, layer))


def test_tokens_are_told_from_positions_and_samples_may_come_second():
    model, x = Turned().eval(), torch.randn(5, 7, 4)
    found = cut(model, x, outputs=3, head="head")
    assert found.token_stages == found.positioned == found.stages
    assert found.tokens_first
    (stage, *_) = found.tokens_first & set(found.stages)
    held = found.capture(x, (stage,))[stage]  # tokens first
    torch.testing.assert_close(found.features(x, f"{stage}:first"), held[0])
    torch.testing.assert_close(found.features(x, f"{stage}:maps"), held.transpose(0, 1).flatten(1))


def test_flat_networks_have_no_positions():
    found = cut(mlp(), torch.randn(7, 4), 3)
    assert found.stages and found.positioned == found.token_stages == ()
