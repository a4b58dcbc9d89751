"""Table 1 again: on a stand-in, and on the real table where it is."""

import dataclasses

import pytest

from immunis import SettingsError, gram
from immunis.core.errors import NumericalError
from immunis.data.sources.house_prices import released_split
from immunis.paper import house_prices, released_loop, reproduce
from immunis.paper.measures import Pair
from immunis.paper.rows import IDENTITY, ROWS, initial
from immunis.paper.tables import tables_of


def test_every_row_column_and_epoch_is_there(house_record):
    found = house_record.figures
    cells = {(row["method"], row["epochs"]) for row in found["rows"]}
    assert {m for m, _ in cells} == set(ROWS) - {IDENTITY}
    assert {e for m, e in cells if m == "algorithm_1"} == {1, 2}
    for row in found["rows"]:
        for kind in ("released", "honest"):
            assert len(row[kind]["rir"]["values"]) == (2 if ROWS[row["method"]].seeded else 1)
        assert set(row["attacks"]) == {"gd_line_search", "ridge"}
        score = row["attacks"]["ridge"]["score"]
        assert score["low"] <= score["median"] <= score["high"] and len(score["values"]) == 2
        assert row["verdict"] and row["reason"]
    best = max(row["honest"]["rir"]["mean"] for row in found["rows"])
    assert 1 < best <= found["pair"]["ceiling"] * (1 + 1e-6)
    assert found["norm_ratio"]["curves"]["identity"]["harmful"][0] == 1
    assert found["path"]["algorithm_1"]["epochs"] == [1, 2]
    assert house_record.data["file"]["as_expected"] is False


@pytest.mark.filterwarnings("ignore:.*sha256")
def test_a_method_that_diverges_is_a_row_not_an_end(house_folder, monkeypatch):
    def diverging(*_):
        raise NumericalError("θ ran away")

    for name in set(ROWS) - {IDENTITY, "imma", "r_ill"}:
        monkeypatch.delitem(ROWS, name)
    for name in ("imma", "r_ill"):
        monkeypatch.setitem(ROWS, name, dataclasses.replace(ROWS[name], settings=diverging))
    monkeypatch.setattr(released_loop, "_step", diverging)
    settings = house_prices.Settings(seeds=1, epochs=(1,), budget=2, curve=2)
    record = reproduce("house-prices", house_folder, settings)
    for row in record.figures["rows"]:
        assert (row["diverged"], row["verdict"]) == (1, "does not replicate")
        assert row["reason"] == "every run diverged"
    assert record.figures["path"]["r_ill"]["epochs"] == []
    assert "diverged" in tables_of(record)[0].markdown()


@pytest.mark.parametrize("bad", [{"seeds": 0}, {"epochs": (10, 5)}, {"epochs": ()}, {"budget": 0}])
def test_impossible_settings_are_refused(bad):
    (name,) = bad
    with pytest.raises(SettingsError, match=name):
        house_prices.Settings(**bad)


def test_on_the_real_table_the_released_loop_gives_what_its_authors_logged(data_folder):
    """Ten epochs: the released repository's log of such a run has factors near these."""
    tasks = released_split(data_folder / "house_prices" / "train.csv")
    (x_p, y_p), (x_h, _) = tasks.primary.train.tensors(), tasks.harmful.train.tensors()
    pair = Pair(gram(tasks.primary), gram(tasks.harmful))
    assert pair.primary.released == pytest.approx(1.76e9, rel=0.02)
    found = dict(released_loop.run(initial(79, 0), (x_p, y_p), x_h, house_prices.LOOP, (10, 100)))
    ten, hundred = (pair.ratios(found[epochs])["released"] for epochs in (10, 100))
    assert 0.1 < ten["primary"] < 0.5 and 0.1 < ten["harmful"] < 0.6 and 1 < ten["rir"] < 4
    assert 50 < hundred["rir"] < 250
