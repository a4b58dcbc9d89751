"""The bundled digits, and MNIST from its idx files."""

import gzip

import numpy as np
import pytest
import torch

from helpers.tasks import row_hashes
from immunis import InputError, Spectrum, gram
from immunis.audits.disjoint import disjoint_rows
from immunis.data.sources import digit_parity, digits, mnist_digits, mnist_images, mnist_pair
from immunis.data.sources.digit_images import mnist_hashes
from immunis.models.zoo import pretrained_mlp


def test_digits_are_split_without_overlap(digit_tasks):
    parts = [
        set(row_hashes(split))
        for split in (
            digit_tasks.harmful.train,
            digit_tasks.attacker.train,
            digit_tasks.harmful.test,
        )
    ]
    assert [len(p) for p in parts] == [360, 269, 267]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert digit_tasks.primary.classes == (0, 1, 2, 3, 4)
    assert digits(seed=1).harmful.train.fingerprint() != digit_tasks.harmful.train.fingerprint()
    assert digits().harmful.train.fingerprint() == digit_tasks.harmful.train.fingerprint()


@pytest.mark.parametrize(
    "bad", [{"primary": []}, {"primary": [1, 10]}, {"primary": [1, 2], "harmful": [2, 3]}]
)
def test_impossible_digits_are_refused(bad):
    with pytest.raises(InputError, match="digits"):
        digits(**bad)


def test_digit_parity_keeps_its_samples_apart():
    tasks = digit_parity(shots=30)
    assert tasks.primary.outputs == 10
    assert tasks.attacker.classes == (0, 1)
    splits = [tasks.harmful.train, tasks.attacker.train, tasks.attacker.test]
    rows = [set(row_hashes(split)) for split in splits]
    assert len(rows[1]) == 30
    assert not rows[0] & rows[1] | rows[0] & rows[2] | rows[1] & rows[2]
    assert tasks.transfer[0].name == "at least five"
    with pytest.raises(InputError, match="shots=5"):
        digit_parity(shots=5)


def test_a_small_network_is_trained_the_same_each_time():
    tasks = digit_parity()
    a, b = (pretrained_mlp(tasks.primary, (16,), epochs=10) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    x, y = tasks.primary.test.tensors()
    assert float((a(x).argmax(1) == y).double().mean()) > 0.5
    with pytest.raises(InputError, match="flat inputs"):
        pretrained_mlp(tasks.primary, ())


def test_mnist_is_read_from_idx_files(data_folder, quiet_rank):
    images, labels = mnist_images(folder=data_folder)
    assert images.shape == (60000, 784)
    assert np.bincount(labels).tolist()[:3] == [5923, 6742, 5958]
    tasks = mnist_pair(3, 7, data_folder)
    assert tasks.primary.name == "digit 3"
    spectrum = Spectrum.of(gram(tasks.primary))
    assert 400 < spectrum.rank < 784


def test_mnist_digits_are_two_tasks_and_three_samples(data_folder):
    tasks = mnist_digits(attacker=500, folder=data_folder)
    assert tasks.primary.class_names == ["0", "1", "2", "3", "4"]
    assert tasks.harmful.outputs == tasks.attacker.outputs == 5
    assert len(tasks.attacker.train.tensors()[0]) == 500
    assert len(tasks.primary.test.tensors()[0]) == 5139
    assert disjoint_rows(tasks.attacker, tasks.primary, tasks.harmful)["checked"]
    for bad in ({"attacker": 3}, {"primary": (0, 5)}, {"harmful": (11,)}):
        with pytest.raises(InputError):
            mnist_digits(**bad, folder=data_folder)


def test_mnist_is_split_again_by_a_seed(data_folder):
    parts = [
        (task.train, task.test)
        for task in (
            mnist_digits(resplit=seed, folder=data_folder).primary for seed in (None, 1, 1, 2)
        )
    ]
    rows = [[set(row_hashes(split)) for split in each] for each in parts]
    whole = rows[0][0] | rows[0][1]
    assert all(train | test == whole for train, test in rows)
    assert rows[1] == rows[2]
    for one, other in ((0, 1), (1, 3)):
        shared = len(rows[one][1] & rows[other][1])
        assert shared < 0.25 * len(rows[one][1])  # a seventh of all rows is test data


def test_pairs_are_of_two_digits(data_folder):
    for bad in ((3, 3), (1, 11)):
        with pytest.raises(InputError, match="digits"):
            mnist_pair(*bad, data_folder)


def test_mnist_files_that_do_not_fit_name_the_hash(mnist_folder, tmp_path):
    target = tmp_path / "mnist"
    target.mkdir()
    with pytest.raises(InputError, match=r"looked for .*t10k-images.*sha256 0fa7898d"):
        mnist_images(False, tmp_path)
    for path in (mnist_folder / "mnist").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    name = target / "t10k-labels-idx1-ubyte.gz"
    whole = name.read_bytes()
    name.write_bytes(whole[:30])
    with pytest.raises(InputError, match=r"t10k-labels.* is damaged.*sha256 ff7bcfd4"):
        mnist_images(False, tmp_path)
    name.write_bytes(gzip.compress(b"hello"))
    with pytest.raises(InputError, match=r"not an idx file.*sha256 ff7bcfd4"):
        mnist_images(False, tmp_path)
    name.write_bytes(gzip.compress(gzip.decompress(whole)[:-5]))
    with pytest.raises(InputError, match=r"truncated.*sha256 ff7bcfd4"):
        mnist_images(False, tmp_path)


def test_unpacked_mnist_files_are_read_as_well(mnist_folder, tmp_path):
    (tmp_path / "mnist").mkdir()
    for path in (mnist_folder / "mnist").iterdir():
        (tmp_path / "mnist" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    for packed, unpacked in zip(
        mnist_images(True, mnist_folder), mnist_images(True, tmp_path), strict=True
    ):
        assert np.array_equal(packed, unpacked)
    assert mnist_hashes(mnist_folder) == mnist_hashes(tmp_path)
