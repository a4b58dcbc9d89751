"""What a record says of the runs that it collects."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

import immunis
from immunis import Record
from immunis.core.jobs import Job, sweep
from immunis.paper import house_prices, planned
from immunis.paper.provenance import code_digest, makers, signed
from immunis.paper.rows import IDENTITY


def test_a_result_says_what_made_it():
    result = sweep({"a": signed(Job(max, (1, 2), "kind: which"), "cpu")})["a"]
    assert result["found"] == 2
    assert set(result["made"]) == {"commit", "code", "torch", "device", "seconds"}
    assert (result["made"]["torch"], result["made"]["device"]) == (torch.__version__, "cpu")
    assert signed(Job(max, (1, 2), "kind: which"), "cpu").kind == "kind"


def test_each_maker_is_listed_once():
    one = {"commit": "a", "code": "b", "torch": "2", "device": "cpu"}
    other = {**one, "device": "NVIDIA H200"}
    made = [{"made": {**who, "seconds": s}} for who, s in ((one, 1), (other, 2), (one, 4))]
    assert makers(made) == [{**one, "jobs": 2, "seconds": 5}, {**other, "jobs": 1, "seconds": 2}]


def test_a_record_lists_the_makers_of_all_its_runs(house_record, mnist_record, tmp_path):
    for record in (house_record, mnist_record):
        again = Record.load(record.save(tmp_path / "record.json"))
        (made,) = again.figures["made_by"]
        assert made["code"] == code_digest() and made["jobs"] > 5 and made["seconds"] > 0


def test_a_change_of_the_code_changes_its_digest(tmp_path, monkeypatch):
    folder = tmp_path / "immunis"
    shutil.copytree(Path(immunis.__file__).parent / "paper", folder / "paper")
    monkeypatch.setattr(immunis, "__file__", str(folder / "__init__.py"))
    before = code_digest.__wrapped__()
    assert before == code_digest.__wrapped__() != code_digest()
    (folder / "paper" / "new.py").write_text("")
    assert code_digest.__wrapped__() != before


@pytest.mark.filterwarnings("ignore:.*sha256")
def test_the_key_of_a_kept_run_holds_the_code(house_folder, monkeypatch):
    monkeypatch.setattr(house_prices, "NAMES", [IDENTITY])
    settings = dataclasses.replace(house_prices.QUICK, epochs=(1,))
    keys = []
    for code in ("one", "other"):
        monkeypatch.setattr("immunis.paper.code_digest", lambda code=code: code)
        keys += planned("house-prices", house_folder, settings)[0]
    assert len(set(keys)) == 2
