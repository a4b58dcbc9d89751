"""Nearest neighbours by the angle between features."""

import torch

from immunis.theory import retrieval as module
from immunis.theory.retrieval import retrieval


def test_it_agrees_with_a_loop_and_does_not_depend_on_blocks(monkeypatch):
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 4
    right = 0
    for i in range(40):
        near = [torch.cosine_similarity(z[i], z[j], 0) if i != j else -2.0 for j in range(40)]
        right += int(y[int(torch.tensor(near).argmax())] == y[i])
    assert retrieval(z, y) == right / 40
    monkeypatch.setattr(module, "BLOCK", 7)
    assert retrieval(z, y) == right / 40


def test_rows_of_one_direction_are_found_whatever_their_length():
    z = torch.eye(3).repeat(4, 1) * torch.arange(1.0, 13.0)[:, None]
    assert retrieval(z, torch.arange(12) % 3) == 1.0
