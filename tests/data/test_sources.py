import gzip
import shutil

import numpy as np
import pytest
import torch

from immunis import InputError, Spectrum, gram, reference_condition_number
from immunis.audits.feature_cache import disjoint_rows
from immunis.data.sources import (
    digit_parity,
    digits,
    house_prices,
    mnist_digits,
    mnist_images,
    mnist_pair,
)
from immunis.data.sources.house_prices import encode, read_table
from immunis.data.sources.npz import npz
from immunis.models.zoo import pretrained_mlp
from immunis.theory.gram import gram_of


def test_digits_are_split_without_overlap(digit_tasks):
    parts = [
        set(split.row_hashes())
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
    rows = [set(split.row_hashes()) for split in splits]
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


def test_house_prices_as_in_the_paper(data_folder, quiet_rank):
    tasks = house_prices(data_folder)
    assert tasks.primary.input_shape == (79,)
    sizes = [len(t.train.tensors()[0]) for t in tasks[:3]]
    assert sizes == [247, 690, 230]
    table = read_table(data_folder / "house_prices" / "train.csv")
    zone = table["MSZoning"] == "RL"
    x, y = encode(table, ~zone, "LotArea", None)
    assert x.shape == (309, 79)
    assert abs(x.mean(0)).max() < 1e-12
    assert y.std(ddof=1) == pytest.approx(1)


def test_theory_section_4_the_released_kappa_is_a_noise_floor_on_house_prices(data_folder):
    """First 200 rows: released κ about 2e9 for both; honest κ 8e3 and 2e5 at rank 74."""
    table = read_table(data_folder / "house_prices" / "train.csv")
    zone = table["MSZoning"] == "RL"
    found = []
    for keep, target in ((~zone, "LotArea"), (zone, "SalePrice")):
        moments = gram_of(torch.from_numpy(encode(table, keep, target, 200)[0]))
        spectrum = Spectrum.of(moments)
        assert spectrum.rank == 74
        found += [spectrum.condition_number, reference_condition_number(moments.matrix())]
    assert found == pytest.approx([7.8e3, 1.76e9, 2.0e5, 1.95e9], rel=0.05)


def test_house_prices_files_that_do_not_fit_are_said(tmp_path, monkeypatch):
    monkeypatch.delenv("IMMUNIS_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(InputError, match=r"looked for .*house_prices.train.csv.*Kaggle"):
        house_prices()
    folder = tmp_path / "house_prices"
    folder.mkdir()
    (folder / "train.csv").write_text("Id,MSZoning\n1,RL\n")
    with pytest.raises(InputError, match="no LotArea and no SalePrice"):
        house_prices(tmp_path)
    (folder / "train.csv").write_text("MSZoning,LotArea,SalePrice\nRL,1,2\nRM,3\n")
    with pytest.raises(InputError, match="line 3 is cut short"):
        house_prices(tmp_path)


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


def test_mnist_files_that_do_not_fit_are_said(tmp_path, data_folder):
    for bad in ((3, 3), (1, 11)):
        with pytest.raises(InputError, match="two different"):
            mnist_pair(*bad, data_folder)
    shutil.copytree(data_folder / "mnist", tmp_path / "mnist", copy_function=shutil.copyfile)
    name = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    whole = name.read_bytes()
    name.chmod(0o644)
    name.write_bytes(whole[:1000])
    with pytest.raises(InputError, match="damaged"):
        mnist_images(folder=tmp_path)
    name.write_bytes(gzip.compress(gzip.decompress(whole)[:500]))
    with pytest.raises(InputError, match="truncated"):
        mnist_images(folder=tmp_path)
    name.write_bytes(gzip.compress(b"hello"))
    with pytest.raises(InputError, match="not an idx file"):
        mnist_images(folder=tmp_path)
    name.unlink()
    with pytest.raises(InputError, match="looked for"):
        mnist_images(folder=tmp_path)


def test_rows_of_an_npz_file_are_shared_out_within_each_class(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    for name in ("p.npz", "h.npz"):
        np.savez(tmp_path / name, x_train=x, y_train=y, x_test=x, y_test=y)
    tasks = npz("p.npz", "h.npz", folder=str(tmp_path))
    assert tasks.harmful.classes == tasks.attacker.classes == (0, 1, 2, 3)
    assert not set(tasks.harmful.train.row_hashes()) & set(tasks.attacker.train.row_hashes())
    for bad in (x[:30], x[:, :1].repeat(2, 0)):
        np.savez(tmp_path / "b.npz", x_train=bad, y_train=y)
        with pytest.raises(InputError, match="pair up one to one"):
            npz("p.npz", "b.npz", folder=str(tmp_path))
    np.savez(tmp_path / "b.npz", x_train=x, y_train=np.array(3))
    with pytest.raises(InputError, match="pair up one to one"):
        npz("p.npz", "b.npz", folder=str(tmp_path))
    np.savez(tmp_path / "r.npz", x_train=x, y_train=x)  # two targets or more: every second row
    halves = npz("p.npz", "r.npz", folder=str(tmp_path))
    assert [len(t.train.tensors()[0]) for t in (halves.harmful, halves.attacker)] == [20, 20]
    assert torch.equal(halves.harmful.train.tensors()[0], torch.from_numpy(x[::2]))
