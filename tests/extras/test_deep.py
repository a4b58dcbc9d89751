"""The deep experiment on timm's own networks, cut as the released code cuts them."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("timm")

from helpers.networks import image_task
from helpers.released_network import naive_algorithm_1, naive_steps
from immunis.data.loader import Stream
from immunis.models.find_cut import cut
from immunis.models.zoo import named_network
from immunis.paper import deep, released_network
from immunis.paper.deep_network import Experiment, paper_row
from immunis.recipes import load_recipe
from immunis.recipes.defences import tables_of

SETTINGS = released_network.Settings(1e-3, 1e-4, 1e2, steps=2, batch=12)


def streams(size):
    roles = {"own": 1, "harm": 2}
    return [Stream(image_task(40, 4, seed, name, size), 12) for name, seed in roles.items()]


def compared(model, parts, size, monkeypatch):
    """Assert that a model and its released cut take the same two steps."""
    monkeypatch.setattr(released_network, "augmented", lambda images, *_: images)
    pair = streams(size)
    batches = list(zip(*(stream.batches(0, 2) for stream in pair), strict=True))
    expected = copy.deepcopy(model).double().train()
    naive_steps(*parts(expected), batches, SETTINGS, naive_algorithm_1)
    whole = cut(model.double(), pair[0].task.train.first(2), 4)
    found = released_network.train(whole, pair, "algorithm_1", SETTINGS).model
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-9)


def test_resnet18_trains_as_released(monkeypatch):
    model = named_network("timm", "resnet18", 4)

    def parts(model):
        children = list(model.children())
        return nn.Sequential(*children[:-3]), nn.Sequential(*children[-3:-1]), children[-1]

    compared(model, parts, 32, monkeypatch)


def test_the_released_loop_scales_images_as_the_weights_say():
    for name, wanted in (("efficientnet-lite0-cars", "inception"), ("imagenet-cars-vit", "clip")):
        pipeline = SimpleNamespace(recipe=load_recipe(name))
        assert Experiment.scaling.fget(SimpleNamespace(pipeline=pipeline)) == wanted


VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_every_method_trains_every_network(name):
    model = named_network("timm", name, 4, options=VIT if "vit" in name else None)
    pair = streams(32)
    whole = cut(model, pair[0].task.train.first(2), 4)
    for method in released_network.METHODS:
        found = released_network.train(whole, pair, method, SETTINGS)
        ratios = released_network.group_ratios(whole, found, pair, groups=2)
        assert all(0 < ratio < float("inf") for ratio in ratios.values())


def test_a_vit_trains_its_last_block_and_all_norms_as_released(monkeypatch):
    model = named_network("timm", "vit_tiny_patch16_224", 4, options=VIT)

    class Features(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model.forward_head(self.model.forward_features(x), pre_logits=True)

    def parts(model):
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "blocks.2" in name or "norm" in name or "head" in name
        block = Features(model)
        head = model.head
        block.parameters = lambda: (p for n, p in model.named_parameters() if "head" not in n)
        return nn.Identity(), block, head

    compared(model, parts, 32, monkeypatch)


@pytest.mark.parametrize("name", [deep.DEFAULT, "stand-in-cars-vit"])
def test_the_stand_ins_build_networks_of_the_papers_families(name):
    recipe = load_recipe(name)
    size = recipe.data["size"]
    model = recipe.extractor(image_task(20, 4, size=size))
    assert paper_row(recipe).endswith("vit" if "vit" in name else "resnet18")
    whole = cut(model, torch.zeros(2, 3, size, size), 4)
    assert whole.width == (384 if "vit" in name else 512)
    for table in tables_of(recipe).values():
        assert whole.parameters_named(recipe.training_for(table).get("layers", ["*"]))
