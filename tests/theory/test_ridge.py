import pytest
import torch

from immunis import InputError
from immunis.theory.gram import gram_of
from immunis.theory.ridge import ridge_probe

F = torch.float64


def test_ridge_probe_equals_the_normal_equations():
    z, y = torch.randn(50, 4, dtype=F) + 2, torch.randn(50, 2, dtype=F)
    weights, bias = ridge_probe(gram_of(z, y), 1e-12)
    ones = torch.cat([z, torch.ones(50, 1, dtype=F)], 1)
    expected = torch.linalg.lstsq(ones, y).solution
    torch.testing.assert_close(weights, expected[:-1])
    torch.testing.assert_close(bias, expected[-1])
    with pytest.raises(InputError, match="positive"):
        ridge_probe(gram_of(z, y), 0)
