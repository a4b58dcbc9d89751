"""Where stages are read: behind norm, activation and pooling, by modules or by functions."""

import pytest
import torch
from torch import nn

from helpers.networks import Encoder, Residual, Tokens, image_task
from immunis.models.find_cut import cut
from immunis.models.zoo import small_cnn


def affine(read, x, y):
    """Return True if a map takes the mean of two inputs to the mean of its outputs."""
    return torch.allclose(read((x + y) / 2), (read(x) + read(y)) / 2, atol=1e-5)


class Functions(nn.Module):
    """Activations and pools that are no modules."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.two, self.head = nn.Conv2d(6, 6, 3), nn.Linear(6, 4)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.norm(self.one(x)).relu(), 2)
        return self.head(self.two(x).relu().mean((2, 3)))


def flat(*more):
    """Convolutions, norms and activations in one long sequence, as in VGG."""
    return nn.Sequential(
        nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3), nn.PReLU(), *more, nn.AdaptiveAvgPool2d(1),
        ),
        nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "outlets", "norms"),
    [
        (small_cnn(image_task(), [4, 6, 8]), {"0.0": "0.2", "1.0": "1.2", "2.0": "2.2"},
         {"0.0": ("0.1",), "1.0": ("1.1",), "2.0": ("2.1",)}),
        (flat(), {"0.0": "0.3", "0.4": "0.5"}, {"0.0": ("0.1",), "0.4": ("0.5",)}),
        (flat(nn.Dropout()), {"0.0": "0.3", "0.4": "0.5"}, {"0.0": ("0.1",), "0.4": ("0.5",)}),
        (Functions(), {"one": "two:in"}, {"one": ("norm",)}),
    ],
)  # fmt: skip
def test_a_bare_layer_is_read_behind_its_activation_at_every_depth(model, outlets, norms):
    x, y = torch.randn(2, 4, 3, 10, 10)
    found = cut(model.eval(), x, 4)
    assert (found.outlets, found.norms) == (outlets, norms)
    assert found.positioned == found.stages  # maps are not averaged away
    for stage in outlets:
        for how in ("", ":grid", ":maps"):
            assert not affine(lambda z: found.features(z, stage + how), x, y)  # noqa: B023
    norm = found.with_norms(found.stages[-1:])[-1]
    assert any(name.startswith(norm) for name in found.parameters_named(()))


def test_a_function_behind_a_layer_is_read_at_the_next_ones_input():
    model, x = Functions().eval(), torch.randn(4, 3, 10, 10)
    found = cut(model, x, 4)
    given = nn.functional.max_pool2d(model.norm(model.one(x)).relu(), 2)
    torch.testing.assert_close(found.features(x, "one:maps"), given.movedim(1, -1).flatten(1))


def test_blocks_that_are_complete_and_ways_side_by_side_are_read_as_they_are():
    class Sides(Functions):
        def forward(self, x):
            x = self.norm(self.one(x)).relu()
            return self.head((self.two(x) + x[..., 1:-1, 1:-1]).mean((2, 3)))

    class Parallel(Functions):
        """The second layer reads what the first one read, not what it gave."""

        def __init__(self):
            super().__init__()
            self.one, self.stem = nn.Conv2d(6, 6, 3), nn.Conv2d(3, 6, 3)

        def forward(self, x):
            x = self.stem(x).relu()
            return self.head((self.norm(self.one(x)) + self.two(x)).mean((2, 3)))

    image = torch.randn(2, 3, 10, 10)
    assert cut(Sides().eval(), image, 4).outlets == {"one": "two:in"}
    found = cut(Parallel().eval(), image, 4)
    assert (found.stages, found.outlets) == (
        ("stem", "one", "two"),
        {"stem": "one:in", "one": "norm"},
    )
    assert cut(Residual().eval(), torch.randn(2, 1, 8, 8), 3).outlets == {"stem": "layer1:in"}
    tokens = cut(Tokens().eval(), torch.randn(2, 3, 6), 2)
    assert tokens.outlets == {f"blocks.{n}": f"blocks.{n + 1}:in" for n in range(3)}
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(block, 2, enable_nested_tensor=False))
    model.append(nn.LayerNorm(8))  # final norms of complete blocks stay behind them
    assert cut(model.eval(), torch.randn(2, 5, 8)).outlets == {}
    assert cut(Encoder().eval(), torch.randint(10, (2, 3))).outlets["layer.0"] == "layer.1:in"


def test_reading_leaves_no_hooks():
    model = flat().eval()
    cut(model, torch.randn(2, 3, 10, 10), 4)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
