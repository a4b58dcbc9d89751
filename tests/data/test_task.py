import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from immunis import InputError, Task, gram


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def sources():
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    return (
        x,
        y,
        {
            "tensors": (x, y),
            "arrays": (x.numpy(), y.numpy()),
            "lists": (x.tolist(), y.tolist()),
            "tensor dataset": TensorDataset(x, y),
            "dataset": Pairs(x, y),
            "loader": DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True),
        },
    )


@pytest.mark.parametrize("kind", list(sources()[2]))
def test_every_kind_of_source_gives_the_same_moments_and_fingerprint(kind):
    x, y, found = sources()
    task, plain = Task(found[kind]), Task((x, y))
    torch.testing.assert_close(gram(task).matrix(), gram(plain).matrix(), rtol=1e-6, atol=1e-6)
    assert task.classes == (0, 1, 2)
    if kind != "lists":  # lists widen float32 to float64, which prints other digits
        assert task.train.fingerprint() == plain.train.fingerprint()


def test_fingerprint_sees_one_changed_value_and_one_changed_label():
    x, y = torch.randn(10, 3), torch.arange(10) % 2
    same = Task((x, y)).train.fingerprint()
    assert Task((x.flip(0), y.flip(0))).train.fingerprint() == same
    other = x.clone()
    other[3, 1] += 1e-3
    assert Task((other, y)).train.fingerprint() != same
    flipped = y.clone()
    flipped[0] = 1
    assert Task((x, flipped)).train.fingerprint() != same


def test_row_hashes_agree_across_dtypes_and_zero_signs():
    x = torch.tensor([[0.0, 1.0], [2.0, -0.0]])
    y = torch.zeros(2, dtype=torch.long)
    a = list(Task((x, y)).train.row_hashes())
    b = list(Task((x.double().abs(), y)).train.row_hashes())
    c = list(Task((x.to(torch.int8), y)).train.row_hashes())
    assert a == b == c


def test_labels_decide_the_kind_and_are_encoded():
    x = torch.randn(6, 2)
    classes = Task((x, torch.tensor([5, 9, 5, 9, 7, 7])))
    assert (classes.kind, classes.classes, classes.outputs) == ("classification", (5, 7, 9), 3)
    assert classes.targets(torch.tensor([9, 5])).tolist() == [[0, 0, 1], [1, 0, 0]]
    values = Task((x, torch.randn(6, 2)))
    assert (values.kind, values.outputs) == ("regression", 2)
    assert Task((x, torch.tensor([True, False] * 3))).classes == (0, 1)


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


X, Y = torch.randn(8, 3), torch.arange(8) % 2
NAN = X.clone().index_put_((torch.tensor(2), torch.tensor(1)), torch.tensor(float("nan")))


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
        ((X[:, :0], Y), "no features"),
        ((X, -Y), "negative"),
        ((X, torch.eye(8).long()), "argmax"),
        ((X, torch.zeros(8, 2, 2)), "(samples, targets)"),
        ((X, np.array(list("abababab"))), "LabelEncoder"),
        ((X.to(torch.complex64), Y), "real numbers"),
        ((X, Y, X), "expected (inputs, labels)"),
        ("data.csv", "got str"),
        (None, "got NoneType"),
        (Pairs(X, [{"label": 1}] * 8), "numbers are needed"),
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


def test_test_data_must_fit_the_training_data():
    with pytest.raises(InputError, match="must agree"):
        Task((X, Y), (X[:, :2], Y))
    with pytest.raises(InputError, match="both as integers"):
        Task((X, Y), (X, Y.float()))
    task = Task((X, Y), (X, Y + 1))
    with pytest.raises(InputError, match="label 2 is not among"):
        task.positions(Y + 1)


def test_quantities_given_as_integers_are_questioned():
    task = Task((torch.randn(200, 2), torch.arange(200) * 1000))
    with pytest.warns(UserWarning, match="pass them as floats"):
        assert len(task.classes) == 200


def test_class_count_can_be_given_to_spare_a_pass():
    assert Task((X, Y), classes=4).outputs == 4
    with pytest.raises(InputError, match="labels are floats"):
        Task((X, X[:, 0]), classes=4)
    for bad in (0, -1, "a"):
        with pytest.raises(InputError, match="at least 1"):
            Task((X, Y), classes=bad)


def test_odd_but_sound_arrays_are_taken():
    big_endian = X.numpy().astype(">f4")
    torch.testing.assert_close(gram(Task((big_endian, Y))).matrix(), gram(Task((X, Y))).matrix())
    for kind in (np.uint16, np.uint32, np.uint64):
        assert Task((X, Y.numpy().astype(kind))).classes == (0, 1)
    assert gram(Task((X.to_sparse_csr(), Y))).dimension == 3
