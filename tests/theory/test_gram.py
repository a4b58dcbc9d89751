import importlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from helpers import reference
from immunis import InputError, Task, gram
from immunis.theory.gram import as_extractor, gram_of

module = importlib.import_module("immunis.theory.gram")


def test_moments_equal_their_definitions():
    x, y = torch.randn(50, 4, dtype=torch.float64) + 3, torch.randn(50, 2, dtype=torch.float64)
    g = gram_of(x, y)
    torch.testing.assert_close(g.matrix(), x.T @ x)
    xc, yc = x - x.mean(0), y - y.mean(0)
    torch.testing.assert_close(g.scatter, xc.T @ xc)
    torch.testing.assert_close(g.cross(), x.T @ y)
    torch.testing.assert_close(g.cross_scatter, xc.T @ yc)
    torch.testing.assert_close(g.target_scatter, yc.T @ yc)


def test_streaming_in_chunks_equals_one_block(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 0)  # chunks of 256 rows
    x, y = torch.randn(2000, 6, dtype=torch.float64) + 1e3, torch.arange(2000) % 5
    streamed = gram(Task((x, y)))
    whole = gram_of(x, Task((x, y)).targets(y))
    assert streamed.samples == 2000
    torch.testing.assert_close(streamed.matrix(), whole.matrix(), rtol=1e-13, atol=0)
    torch.testing.assert_close(streamed.scatter, whole.scatter, rtol=1e-11, atol=1e-8)
    torch.testing.assert_close(streamed.cross_scatter, whole.cross_scatter, rtol=1e-9, atol=1e-8)


def test_centring_survives_a_mean_a_billion_times_the_spread():
    x = torch.randn(500, 3, dtype=torch.float64)
    shifted = x + 1e9
    expected = shifted - shifted.mean(0)
    torch.testing.assert_close(
        gram(Task((shifted, torch.zeros(500)))).scatter, expected.T @ expected, rtol=1e-6, atol=1e-3
    )


STREAM = """
import resource, torch
from torch.utils.data import DataLoader, IterableDataset
from immunis import Task, gram

class Rows(IterableDataset):
    def __init__(self, blocks):
        self.blocks = blocks
    def __iter__(self):
        for _ in range(self.blocks):
            yield torch.randn(10_000, 64), torch.zeros(10_000, dtype=torch.long)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB

torch.manual_seed(0)
gram(Task(DataLoader(Rows(2), batch_size=None)))
before = peak()
found = gram(Task(DataLoader(Rows(100), batch_size=None)))
print(found.samples, float((found.matrix() / 1e6 - torch.eye(64)).abs().max()), peak() - before)
"""


def test_a_million_rows_stream_in_little_memory():
    done = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    samples, error, grown = map(float, done.stdout.split())
    assert samples == 1_000_000 and error < 5e-3
    assert grown < 64, f"{grown:.0f} MB more for rows of 256 MB"


def test_an_extractor_is_applied_and_targets_collected():
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    g = gram(Task((x, y)), lambda batch: batch @ torch.ones(3, 2))
    assert g.dimension == 2
    assert g.cross_scatter.shape == (2, 2)
    z = (x @ torch.ones(3, 2)).double()
    torch.testing.assert_close(g.matrix(), z.T @ z, rtol=1e-5, atol=1e-5)


def test_transform_equals_the_gram_of_transformed_features():
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.randn(30, 1, dtype=torch.float64)
    t = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(gram_of(x, y).transform(t).matrix(), gram_of(x @ t, y).matrix())
    torch.testing.assert_close(gram_of(x, y).transform(t).cross(), gram_of(x @ t, y).cross())


def test_merging_refuses_other_shapes():
    with pytest.raises(InputError, match="merge"):
        gram_of(torch.randn(5, 2)).add(torch.randn(5, 3))


@pytest.mark.parametrize("value", [1e200, -1e300, 1e-200])
def test_features_out_of_range_are_refused(value):
    x = np.full((4, 2), value)
    with pytest.raises(InputError, match="rescale"):
        gram(Task((x, np.arange(4) % 2)))


@pytest.mark.parametrize("value", [1e200, 1e-200])
def test_targets_out_of_range_are_refused(value):
    with pytest.raises(InputError, match="targets reach .* rescale"):
        gram(Task((torch.randn(4, 2), torch.arange(4, dtype=torch.float64) * value)))


def test_images_must_be_flattened_first():
    with pytest.raises(InputError, match="Flatten images"):
        gram(Task((torch.randn(4, 3, 8, 8), torch.arange(4) % 2)))


def test_loader_and_tensor_agree():
    x, y = torch.randn(100, 3), torch.arange(100) % 4
    loader = DataLoader(TensorDataset(x, y), batch_size=9)
    torch.testing.assert_close(gram(Task(loader)).matrix(), gram(Task((x, y))).matrix())
    for source in (x, x.numpy(), loader, TensorDataset(x, y)):
        torch.testing.assert_close(gram(source).matrix(), gram(Task((x, y))).matrix())


def test_extractors_are_checked():
    with pytest.raises(InputError, match="training mode"):
        as_extractor(reference.PlainNet(5, 3))
    with pytest.raises(InputError, match="nn.Module"):
        as_extractor("model")
    x = torch.randn(3, 2)
    assert torch.equal(as_extractor(None)(x), x)
