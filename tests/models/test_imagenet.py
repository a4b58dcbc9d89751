"""An ImageNet head is narrowed to a task's classes by name, and nothing else changes."""

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.networks import whole_again
from immunis import InputError
from immunis.models.imagenet import CLASSES, imagenet_rows, keep_outputs

NAMES = [f"n{number:08d}" for number in range(CLASSES)]


@pytest.fixture
def known(monkeypatch):
    info = SimpleNamespace(label_names=lambda: NAMES)
    fake = SimpleNamespace(data=SimpleNamespace(ImageNetInfo=lambda subset: info))
    monkeypatch.setitem(sys.modules, "timm", fake)
    monkeypatch.setitem(sys.modules, "timm.data", fake.data)


def test_rows_are_found_by_wordnet_id(known):
    assert imagenet_rows(["n00000007", "n00000002"]) == [7, 2]
    with pytest.raises(InputError, match="'goldfish' is none of ImageNet's; expected WordNet ids"):
        imagenet_rows(["n00000007", "goldfish"])


@pytest.mark.parametrize("bias", [True, False])
def test_a_narrowed_head_answers_as_the_chosen_rows_did(bias):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES, bias=bias))
    x = torch.randn(5, 4)
    whole = model(x)
    keep_outputs(model, [7, 2, 999])
    torch.testing.assert_close(model(x), whole[:, [7, 2, 999]])


def test_a_narrowed_network_is_made_whole_again():
    original = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES)).eval()
    model, rows, x = copy.deepcopy(original), [7, 2, 999], torch.randn(5, 4)
    keep_outputs(model, rows)
    assert torch.equal(whole_again(model, original, rows)(x), original(x))
    with torch.no_grad():  # training moved it
        model[0].weight.mul_(0.5)
        model[2].bias.add_(1.0)
    found = whole_again(model, original, rows)(x)
    torch.testing.assert_close(found[:, rows], model(x))
    others = [row for row in range(CLASSES) if row not in rows]
    torch.testing.assert_close(found[:, others], original[2](original[1](model[0](x)))[:, others])


@pytest.mark.parametrize(
    ("model", "words"), [(nn.Linear(4, 10), "a head of 10"), (nn.ReLU(), "no linear head")]
)
def test_a_network_of_other_classes_is_refused(model, words):
    with pytest.raises(InputError, match=f"{words}; expected one with 1,000 outputs"):
        keep_outputs(nn.Sequential(model), [0])
