"""Table 1 again: on a stand-in, and on the real table where it is."""

import dataclasses

import pytest
import torch

from immunis import SettingsError
from immunis.core.errors import NumericalError
from immunis.data.sources.house_price_table import released_split
from immunis.paper import house_prices, released_loop, reproduce
from immunis.paper.measures import Pair, ratios
from immunis.paper.released_loop import Side
from immunis.paper.rows import IDENTITY, ROWS, trained
from immunis.paper.tables import tables_of


def test_every_row_column_and_epoch_is_there(house_record):
    found = house_record.figures
    cells = {(row["method"], row["epochs"]) for row in found["rows"]}
    assert {m for m, _ in cells} == set(house_prices.NAMES) - {IDENTITY}
    assert {e for m, e in cells if m == "algorithm_1"} == {1, 2}
    for row in found["rows"]:
        for kind in ("released", "honest"):
            assert len(row[kind]["rir"]["values"]) == (2 if ROWS[row["method"]].seeded else 1)
        assert set(row["attacks"]) == {"gd_line_search", "ridge"}
        score = row["attacks"]["ridge"]["score"]
        assert score["low"] <= score["median"] <= score["high"] and len(score["values"]) == 2
        small = "not tested at the paper's setting"
        assert row["replicates"] == (small if ROWS[row["method"]].said else "–")
    best = max(row["honest"]["rir"]["mean"] for row in found["rows"])
    assert 1 < best <= found["pair"]["ceiling"] * (1 + 1e-6)
    assert found["norm_ratio"]["curves"]["identity"]["harmful"][0] == 1
    assert found["path"]["algorithm_1"]["epochs"] == [1, 2]
    assert house_record.data["file"]["as_expected"] is False


@pytest.mark.filterwarnings("ignore:.*sha256")
def test_a_method_that_diverges_is_a_row_not_an_end(house_folder, monkeypatch):
    def diverging(*_):
        raise NumericalError("θ ran away")

    monkeypatch.setattr(house_prices, "NAMES", [IDENTITY, "condition", "r_ill"])
    corrected = dataclasses.replace(ROWS["condition"], settings=diverging)
    monkeypatch.setitem(ROWS, "condition", corrected)
    monkeypatch.setattr(released_loop, "printed_inverse", lambda pull, *_: pull * float("inf"))
    settings = house_prices.Settings(seeds=1, epochs=(1,), budget=2, curve=2)
    record = reproduce("house-prices", house_folder, settings)
    reasons = {row["method"]: row["reason"] for row in record.figures["rows"]}
    assert "1 of 1 runs failed: θ ran away" in reasons["condition"]
    assert "1 of 1 runs failed: the layer is no longer finite" in reasons["r_ill"]
    assert record.figures["path"]["r_ill"]["epochs"] == []
    assert "failed" in tables_of(record)[0].markdown()


@pytest.mark.parametrize("bad", [{"seeds": 0}, {"epochs": (10, 5)}, {"epochs": ()}, {"budget": 0}])
def test_impossible_settings_are_refused(bad):
    (name,) = bad
    with pytest.raises(SettingsError, match=name):
        house_prices.Settings(**bad)


def test_on_the_real_table_the_released_loop_gives_what_its_authors_logged(data_folder):
    """Ten epochs: the released repository's log of such a run has factors near these."""
    tasks = released_split(data_folder / "house_prices" / "train.csv")
    sides = [
        Side(x, [torch.arange(200)], [y])
        for x, y in (task.train.tensors() for task in (tasks.primary, tasks.harmful))
    ]
    pair = Pair(*(side.inputs for side in sides))
    before = pair.kappas()
    assert before["released"][0] == pytest.approx(
        1795161651.06, rel=1e-6
    )  # the authors' log has it
    run = trained(ROWS["algorithm_1"], *sides, house_prices.LOOP, (10, 100), seed=0)
    ten, hundred = (ratios(before, pair.kappas(layer, 20))["released"] for _, _, layer in run)
    assert 0.1 < ten["primary"] < 0.5 and 0.1 < ten["harmful"] < 0.6 and 1 < ten["rir"] < 4
    assert 50 < hundred["rir"] < 250
