"""The files of the paper's two data sets: found, fetched, and refused if they do not fit."""

import gzip
import types

import numpy as np
import pytest

from immunis import InputError
from immunis.data.sources.house_prices import SHA256, find_or_fetch, released_split
from immunis.data.sources.mnist import mnist_hashes, mnist_images


def test_a_missing_table_names_the_hash_and_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("IMMUNIS_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def offline(**_):
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    with pytest.raises(InputError, match=f"{SHA256}.*OpenML failed too: no network"):
        find_or_fetch(fetch=True)
    for unasked in (lambda: find_or_fetch(), lambda: find_or_fetch(tmp_path / "nowhere", True)):
        with pytest.raises(InputError, match="looked for.*--fetch") as error:
            unasked()
        assert "failed too" not in str(error.value)  # who names a folder gets that folder


def test_the_table_is_fetched_once_and_kept(house_folder, tmp_path, monkeypatch):
    monkeypatch.delenv("IMMUNIS_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (house_folder / "house_prices" / "train.csv").read_text()
    asked = []

    def fetch(data_id, **_):
        asked.append(data_id)
        return types.SimpleNamespace(frame=types.SimpleNamespace(to_csv=lambda **_: text))

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    assert released_split(find_or_fetch(fetch=True)).primary.input_shape == (79,)
    assert released_split(find_or_fetch()).harmful.kind == "regression"
    assert asked == [42165]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "MSZoning"),
        ("Id,MSZoning,LotArea\n1,RL,2\n", "found no SalePrice"),
        ("MSZoning,LotArea,SalePrice\nRL,1,2\nRM,3\n", "line 3 is cut short"),
        ("MSZoning,LotArea,SalePrice\nRL,1,2\nRM,x,3\n", "line 3 has 'x' in column LotArea"),
        ("MSZoning,LotArea,SalePrice\nRL,1,NA\n", "line 2 has 'NA' in column SalePrice"),
        ("MSZoning,LotArea,SalePrice\n", "found no rows"),
        ("MSZoning,LotArea,SalePrice\nRL,1,2\nRM,3,4\n", "1 input columns.*79"),
    ],
)
def test_tables_that_do_not_fit_are_said(tmp_path, text, says):
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(InputError, match=f"(?s){says}.*{SHA256}"):
        released_split(tmp_path / "train.csv")
    (tmp_path / "train.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a readable CSV"):
        released_split(tmp_path / "train.csv")


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
