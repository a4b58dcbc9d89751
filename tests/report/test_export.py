"""Weights are written with their record, the same bytes each time."""

import safetensors.torch
import torch

from immunis import Record
from immunis.report.export import weights


def test_equal_weights_are_equal_files():
    torch.manual_seed(0)
    model, record = torch.nn.Linear(3, 2), Record("immunize", "é", {}, {"method": "probe"})
    files = [weights(model, record) for _ in range(20)]
    assert len(set(files)) == 1
    start = 8 + int.from_bytes(files[0][:8], "little")
    assert start % 8 == 0 and safetensors.torch.load(files[0])["weight"].equal(model.weight)
