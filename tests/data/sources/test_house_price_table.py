"""House Prices as the paper encodes it."""

import types

import pytest
import torch

from immunis import InputError, Spectrum, reference_condition_number
from immunis.data.sources import house_prices
from immunis.data.sources.house_price_table import (
    SHA256,
    encode,
    find_or_fetch,
    read_table,
    released_split,
)
from immunis.theory.gram import gram_of


def test_a_house_without_masonry_has_a_missing_value_there(data_folder):
    """pandas 2 reads "None" as missing, and the released code fills what is missing with 0."""
    table = read_table(data_folder / "house_prices" / "train.csv")
    place = [name for name in table if name not in ("LotArea", "SalePrice")].index("MasVnrType")
    x, _ = encode(table, table["MSZoning"] == "RL", "SalePrice", None)
    assert len(set(x[:, place])) == 4  # missing, BrkCmn, BrkFace, Stone


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
        x = torch.from_numpy(encode(table, keep, target, 200)[0])
        spectrum = Spectrum.of(gram_of(x))
        assert spectrum.rank == 74
        found += [spectrum.condition_number, reference_condition_number(x.T @ x)]
    assert found == pytest.approx([7732, 1.795e9, 208_000, 2.010e9], rel=1e-3)


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
        ("Id,MSZoning\n1,RL\n", "found no LotArea and no SalePrice"),
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
