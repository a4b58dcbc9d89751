"""Every kind of source: the same batches, hashes and fingerprints; corrupt samples counted."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from helpers.images import write_folders
from helpers.tasks import row_hashes
from helpers.training import Pairs
from immunis import InputError, Task, gram
from immunis.data.sources.image_layouts import read_images


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
    a = row_hashes(Task((x, y)).train)
    b = row_hashes(Task((x.double().abs(), y)).train)
    c = row_hashes(Task((x.to(torch.int8), y)).train)
    assert a == b == c


def test_a_loader_of_images_counts_what_is_corrupt(tmp_path):
    write_folders(tmp_path, "train")
    next((tmp_path / "train").rglob("*.png")).write_bytes(b"no image")
    loader = DataLoader(read_images(tmp_path, "train", 16), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = Task(loader, name="own")
    assert sum(len(y) for _, y in task.train.batches()) == 11
    assert len(task.train.corrupt) == 1


def test_a_loader_with_an_iteration_of_its_own_is_left_alone():
    class Own(DataLoader):
        def __iter__(self):
            return ((x * 2, y) for x, y in super().__iter__())

    data = TensorDataset(torch.randn(20, 8), torch.arange(20) % 3)
    assert Task(Own(data, batch_size=4), name="own").outputs == 3


def spoil(folder, count):
    for index in range(count):
        (folder / "train" / "class1" / f"{index}.png").write_bytes(b"\x89PNG nothing")


def test_one_is_skipped_and_counted(tmp_path):
    write_folders(tmp_path, "train", each=6)
    spoil(tmp_path, 1)
    task = Task(read_images(tmp_path, "train", 16), name="pictures")
    with pytest.warns(UserWarning, match=r"skipped .*class1.0\.png"):
        count = sum(len(y) for _, y in task.train.batches(4))
    assert count == 17
    assert len(task.train.corrupt) == 1


def test_many_are_refused(tmp_path):
    write_folders(tmp_path, "train", each=6)
    spoil(tmp_path, 3)
    task = Task(read_images(tmp_path, "train", 16), name="pictures", classes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="of 18 samples cannot be read"):
            list(task.train.batches(4))
