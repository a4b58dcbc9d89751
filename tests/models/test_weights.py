"""Weights in a file of another library, taken by their order, and checked by their hash."""

import hashlib

import pytest
import torch
from torch import nn

from immunis import InputError
from immunis.models.weights import load_weights


def network(width=6):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU()).eval()


@pytest.fixture
def foreign(tmp_path):
    """Weights under other names, without BatchNorm's counters, as old files have them."""
    source = network()
    with torch.no_grad():
        for tensor in source.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.0)
    state = {
        f"_other_{place}": value
        for place, (name, value) in enumerate(source.state_dict().items())
        if "num_batches" not in name
    }
    torch.save(state, tmp_path / "foreign.pth")
    return source, tmp_path / "foreign.pth"


def test_tensors_are_taken_in_order(foreign):
    source, path = foreign
    model = network()
    load_weights(model, path, in_order=True)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(x), source(x))
    with pytest.raises(InputError, match="belong to another model"):
        load_weights(network(), path)


def test_another_architecture_is_refused(foreign):
    _, path = foreign
    with pytest.raises(InputError, match="_other_0 stands where 0.weight should"):
        load_weights(network(width=5), path, in_order=True)
    with pytest.raises(InputError, match="hold 6 tensors, the model has 8"):
        load_weights(nn.Sequential(network(), nn.Linear(6, 2)), path, in_order=True)


def test_a_file_of_another_hash_is_refused(foreign):
    _, path = foreign
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    load_weights(network(), path, in_order=True, sha256=digest.upper())
    with pytest.raises(InputError, match="another version or was damaged"):
        load_weights(network(), path, in_order=True, sha256="0" * 64)
