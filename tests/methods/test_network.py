"""Networks given to immunize: what is trained, what is refused."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.networks import small_net, tasks
from helpers.training import SHORT
from immunis import InputError, SettingsError, Task, audit, immunize
from immunis.models.find_cut import cut
from immunis.theory.gram import gram_of
from immunis.theory.probes import rho_of_gram


def test_a_model_without_a_linear_head_is_refused():
    def headless(outputs):
        parts = nn.Conv2d(3, outputs, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        return nn.Sequential(*parts).eval()

    with pytest.raises(InputError, match="no linear head with 4 outputs"):
        immunize(headless(4), *tasks(), "probe", training=SHORT, weight=10.0)
    with pytest.raises(InputError, match=r"be kept\. Name it with head= .* head=nn\.Linear"):
        immunize(headless(8), *tasks(), "probe", training=SHORT, weight=10.0)
    wide = nn.Sequential(headless(8), nn.Linear(8, 6)).eval()
    with pytest.raises(InputError, match=r"ends in '1' with 6: .*classes=6"):
        immunize(wide, *tasks(), "probe", training=SHORT, weight=10.0)
    with pytest.raises(InputError, match="network"):
        immunize(torch.eye(3), *tasks(), "probe", training=SHORT, weight=10.0)


def test_a_model_that_answers_with_probabilities_is_refused():
    model = nn.Sequential(*small_net(), nn.Softmax(1)).eval()
    with pytest.raises(InputError, match="without its softmax"):
        immunize(model, *tasks(), "probe", training=SHORT, weight=10.0, head="6")


def test_weights_that_are_not_finite_are_refused_by_name():
    model = small_net()
    model[0].weight.data[0] = math.nan
    with pytest.raises(InputError, match=r"the model's 0\.weight holds NaN"):
        immunize(model, *tasks(), "probe", training=SHORT, weight=10.0)


def test_compiled_and_half_precision_models_are_refused_before_any_step():
    model = small_net()
    model[3] = torch.compile(model[3])
    with pytest.raises(InputError, match=r"under torch\.compile"):
        immunize(model, *tasks(), "probe", training=SHORT, weight=10.0)
    with pytest.raises(InputError, match=r"0\.weight is in float16"):
        immunize(small_net().half(), *tasks(), "probe", training=SHORT, weight=10.0)


class FirstToken(nn.Module):
    """A head that reads every position, and a model that answers with the first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.fc = nn.Linear(24, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.embed(x.reshape(len(x), 8, 24))))[:, 0]


@pytest.mark.filterwarnings("ignore")
def test_the_token_that_the_model_heeds_is_defended_and_audited():
    primary, harmful = tasks()
    result = immunize(
        FirstToken().eval(), primary, harmful, "probe", head="fc", training=SHORT, weight=10.0
    )
    inputs, labels = primary.test.tensors()
    own = float((result.model(inputs).argmax(1) == labels).float().mean())
    assert result.record.figures["primary_score"]["after"] == pytest.approx(own)
    first = torch.tanh(result.model.embed(inputs.reshape(len(inputs), 8, 24)))[:, 0]
    torch.testing.assert_close(cut(result.model, inputs[:2], 4, "fc").features(inputs), first)
    z = torch.tanh(result.model.embed(harmful.train.tensors()[0].reshape(-1, 8, 24)))[:, 0]
    moments = gram_of(z.detach(), harmful.targets(harmful.train.tensors()[1]))
    assert result.record.figures["rho"]["after"] == pytest.approx(rho_of_gram(moments), rel=1e-4)
    models = {"original": FirstToken().eval(), "probe": result.model}
    few = {"seeds": 1, "budget": 5}
    found = audit(models, primary, harmful, attacks=["ridge"], effort=few, head="fc")
    assert found.record.figures["models"]["probe"]["primary"] == pytest.approx(own)


def test_methods_say_where_they_apply():
    with pytest.raises(SettingsError, match="trains no network"):
        immunize(small_net(), *tasks(), "frontier", training=SHORT)
    flat = Task((torch.randn(30, 5), torch.arange(30) % 2))
    with pytest.raises(SettingsError, match="no linear form.*use 'erase'"):
        immunize(torch.eye(5), flat, flat, "probe")
    primary, _ = tasks()
    with pytest.raises(InputError, match="one and the same task"):
        immunize(small_net(), primary, primary, "probe")


class Pair(nn.Module):
    """Two heads, of whose answers the first counts."""

    def __init__(self):
        super().__init__()
        self.body, self.aux = nn.Sequential(nn.Flatten(), nn.Linear(192, 16)), nn.Linear(16, 4)
        self.a, self.b = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):
        z = self.body(x)
        return self.a(z), self.b(z)


def test_answers_that_do_not_come_from_the_head_are_refused():
    assert (
        immunize(Pair(), *tasks(), "probe", head="a", training=SHORT, weight=10.0).head.out_features
        == 4
    )
    with pytest.raises(InputError, match="answers do not come from its head 'b'"):
        immunize(Pair(), *tasks(), "probe", head="b", training=SHORT, weight=10.0)


def test_layers_that_features_do_not_come_through_are_refused():
    training = dataclasses.replace(SHORT, layers=["aux"])
    with pytest.raises(InputError, match="the features do not come through aux"):
        immunize(Pair(), *tasks(), "probe", head="a", training=training, weight=10.0)


class Checkpointed(Pair):
    """A layer that autograd's graph does not show."""

    def forward(self, x):
        x = x.flatten(1)
        if torch.is_grad_enabled() and not x.requires_grad:
            x = x.detach().requires_grad_()
        return self.a(checkpoint(self.body[1], x, use_reentrant=True))


@pytest.mark.filterwarnings("ignore")
def test_layers_that_autograd_does_not_show_are_trained():
    training = dataclasses.replace(SHORT, layers=["body.1"])
    model = Checkpointed()
    found = immunize(model, *tasks(), "probe", training=training, weight=10.0).model
    assert not torch.equal(found.body[1].weight, model.body[1].weight)


def test_a_bare_encoder_is_trained_with_a_head_beside_it():
    encoder, head = Pair().body, nn.Linear(16, 4)
    encoder[1].bias.requires_grad_(False)
    training = dataclasses.replace(SHORT, layers=["1.weight"])
    found = immunize(encoder, *tasks(), "probe", head=head, training=training, weight=10.0)
    assert type(found.model) is type(encoder)
    assert not torch.equal(found.model[1].weight, encoder[1].weight)
    assert torch.equal(found.model[1].bias, encoder[1].bias)
    assert not torch.equal(found.head.weight, head.weight)
    flags = [p.requires_grad for p in found.model.parameters()]
    assert flags == [True, False]  # as they were
    assert found.record.figures["rho"]["after"] < found.record.figures["rho"]["before"]


def test_answers_for_every_token_are_refused():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 4)

        def forward(self, x):
            return self.head(self.body(x.mean(1)))

    with pytest.raises(InputError, match="expected one row of 4 outputs"):
        immunize(Tokens().eval(), *tasks(), "probe", training=SHORT, head="head", weight=10.0)
