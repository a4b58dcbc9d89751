"""A head is found by its answers; models that cannot be cut are refused."""

import pytest
import torch
from torch import nn

from helpers.networks import Residual, mlp
from immunis import InputError, SettingsError
from immunis.models.find_head import cut


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
    with pytest.raises(InputError, match="answers all of them alike"):
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
