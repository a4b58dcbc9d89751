"""Numbers as users bring them: taken, or refused in words."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from helpers.training import Pairs
from immunis import InputError, Task, gram

X, Y = torch.randn(8, 3), torch.arange(8) % 2
NAN = X.clone().index_put_((torch.tensor(2), torch.tensor(1)), torch.tensor(float("nan")))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int32,
        torch.bool,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ],
)
def test_every_real_input_dtype_is_widened_without_loss(dtype):
    x = torch.randint(0, 2, (20, 3)).to(dtype)
    task = Task((x, torch.arange(20) % 2))
    torch.testing.assert_close(gram(task).matrix(), x.double().T @ x.double())
    expected = torch.finfo(dtype).eps if dtype.is_floating_point else torch.finfo(torch.float64).eps
    assert gram(task).epsilon == expected


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ((NAN, Y), "1 NaN or infinite input"),
        ((X / 0, Y), "NaN or infinite input"),
        ((X, Y.float() / 0), "NaN or infinite label"),
        ((X[:0], Y[:0]), "0 sample"),
        ((X[:1], Y[:1]), "1 sample"),
        ((X, Y[:5]), "pair up"),
        ((X, torch.tensor(1)), "pair up"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "unequal length"),
        ((X.numpy().astype(np.longdouble), Y), "plain numbers"),
        ((X.to(torch.float8_e4m3fn), Y), "common dtype"),
        ((np.full((3, 2), 2**63, np.uint64), [0, 1, 0]), r"2\*\*63"),
        ((X[:, 0], Y), "expected (samples, features)"),
        ((X[:, :0], Y), "at least one feature"),
        ((X, -Y), "negative"),
        ((X, torch.eye(8).long()), "argmax"),
        ((X, torch.zeros(8, 2, 2)), "(samples, targets)"),
        ((np.array([[object()]] * 8), Y), "Taken are images (n, channels"),
        ((["a text"] * 8, Y), "text came without a tokenizer"),
        ((X.to(torch.complex64), Y), "real numbers"),
        ((X, Y, X), "expected (inputs, labels)"),
        ("data.csv", "data.csv is no folder"),
        (None, "got NoneType"),
        (Pairs(X, [{"label": 1}] * 8), "expected plain numbers"),
    ],
)
def test_bad_data_is_refused_in_words(train, says):
    with pytest.raises(InputError) as error:
        Task(train, name="toy")
    assert says.replace("\\", "") in str(error.value)
    assert "toy train" in str(error.value)


def test_a_loader_is_checked_while_it_streams():
    loader = DataLoader(TensorDataset(torch.cat([X, NAN]), torch.cat([Y, Y])), batch_size=8)
    with pytest.raises(InputError, match="NaN"):
        gram(Task(loader))
    with pytest.raises(InputError, match="pair"):
        Task(DataLoader(TensorDataset(X)))
    with pytest.raises(InputError, match="1 sample"):
        gram(Task(Pairs(X[:1], Y[:1])))


def test_odd_but_sound_arrays_are_taken():
    big_endian = X.numpy().astype(">f4")
    torch.testing.assert_close(gram(Task((big_endian, Y))).matrix(), gram(Task((X, Y))).matrix())
    for kind in (np.uint16, np.uint32, np.uint64):
        assert Task((X, Y.numpy().astype(kind))).classes == (0, 1)
    assert gram(Task((X.to_sparse_csr(), Y))).dimension == 3
