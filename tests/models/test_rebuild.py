"""A configuration that builds one's own network again, or says why it cannot."""

import json

import pytest
import torch
from torch import nn

from immunis import SettingsError
from immunis.models.rebuild import build, described
from immunis.models.weights import config


class Net(nn.Module):
    def __init__(self, width=4, act="relu"):
        super().__init__()
        self.body, self.head = nn.Linear(3, width), nn.Linear(width, 2)
        self.act = nn.GELU() if act == "gelu" else nn.ReLU()

    def forward(self, x):
        return self.head(self.act(self.body(x)))


class Needs(Net):
    def __init__(self, width):
        super().__init__(width)


LAYERS = {
    "linear": (nn.Linear(5, 5, bias=False), (5,)),
    "mlp": (nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)), (3, 4)),
    "convolutional": (
        nn.Sequential(
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect", groups=1),
                nn.BatchNorm2d(8, eps=1e-3, affine=False),
                nn.LeakyReLU(0.2),
                nn.MaxPool2d(2, stride=1),
            ),
            nn.Conv2d(8, 4, (1, 3), stride=(1, 2), bias=False),
            nn.GroupNorm(2, 4),
            nn.AdaptiveAvgPool2d((2, 1)),
            nn.Dropout(0.3),
            nn.Identity(),
            nn.Flatten(),
            nn.Unflatten(1, (4, 2)),
            nn.Flatten(),
            nn.LayerNorm(8, elementwise_affine=False),
            nn.Linear(8, 2),
        ),
        (3, 9, 9),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_torch_are_built_again(name):
    model, shape = LAYERS[name]
    model = model.eval()
    found = json.loads(json.dumps(described(model)))
    again = build(found["layers"]).eval()
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, *shape)
    assert torch.equal(again(x), model(x)) and repr(again) == repr(model)


def test_ones_own_class_is_built_with_the_options_it_was_made_with():
    found = described(Net(6, act="gelu"), {"width": 6, "act": "gelu"})
    assert found["model_args"] == {"width": 6, "act": "gelu"}
    assert found["class"].endswith("test_rebuild:Net") and "not_rebuilt" not in found
    assert described(Net())["model_args"] == {}
    with pytest.raises(SettingsError, match=r"Net\(width=5\) does not build it: it differs in"):
        described(Net(6), {"width": 5})
    with pytest.raises(SettingsError, match="prints another structure"):
        described(Net(4, act="gelu"), {"width": 4})


def test_what_cannot_be_built_says_why():
    told = described(Needs(4))["not_rebuilt"]
    assert "missing 1 required positional argument: 'width'" in told and "options=" in told
    assert "it differs in" in described(Net(6))["not_rebuilt"]
    inner = nn.Sequential(nn.TransformerEncoderLayer(4, 1), nn.Linear(4, 2))
    assert "has layers inside" in described(inner)["not_rebuilt"]
    assert "Sequential.0 is a TransformerEncoderLayer" in described(inner)["not_rebuilt"]
    assert "LSTM does not keep its arguments" in described(nn.LSTM(3, 4))["not_rebuilt"]
    hooked = nn.Sequential(nn.Linear(3, 2))
    hooked[0].register_forward_hook(lambda *_: None)
    assert "hooks" in described(hooked)["not_rebuilt"]
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert "not_rebuilt" in described(normed)
    mine = nn.Sequential(Net())  # a layer that nobody else has
    assert "Sequential.0 is a Net, no layer of torch.nn" in described(mine)["not_rebuilt"]


def test_a_class_of_the_hubs_mixin_knows_its_options():
    hub = pytest.importorskip("huggingface_hub")

    class Mine(Needs, hub.PyTorchModelHubMixin):
        pass

    assert described(Mine(7))["model_args"] == {"width": 7}


def test_a_recipes_options_of_a_library_are_not_a_classs_own():
    from immunis import Record

    record = Record("immunize", "x", {}, {"recipe": {"model": {"options": {"depth": 2}}}})
    assert config(Net(), record)["model_args"] == {}
