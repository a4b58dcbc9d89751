import json
import math
import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from helpers import ROOT
from immunis import InputError, OutputError, Record
from immunis.core.files import make_folder, sealed, write_text
from immunis.core.records import SCHEMA
from immunis.report.card import render


def sample(**figures):
    return Record(kind="bench", name="x", figures=figures, seed=1)


def test_round_trip_keeps_special_floats(tmp_path):
    record = sample(a=math.inf, b=[-math.inf, 1.5], c={"d": None}, e=torch.tensor([1.0, 2.0]))
    loaded = Record.load(record.save(tmp_path / "r.json"))
    assert loaded.figures == {"a": math.inf, "b": [-math.inf, 1.5], "c": {"d": None}, "e": [1, 2]}
    assert loaded.versions == record.versions
    assert loaded.to_json() == record.to_json()
    assert math.isnan(Record.load(sample(n=math.nan).save(tmp_path / "n.json")).figures["n"])


def test_the_file_is_plain_json_with_provenance(tmp_path):
    values = json.loads(sample(a=math.inf).save(tmp_path / "r.json").read_text())
    assert values["figures"] == {"a": "Infinity"}
    assert {"schema", "seed", "versions", "commit", "created", "seconds", "settings"} <= set(values)
    assert values["versions"]["torch"] == version("torch")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not an immunis record"),
        ('{"kind": "x"}', "lacks"),
        ('{"kind": "x", "name": "y", "figures": {}, "schema": 99}', "Upgrade immunis"),
        ('{"kind": "x", "name": "y", "figures": {}, "schema": "1"}', "schema"),
        ('{"kind": "x", "name": "y", "figures": {}, "schema": 0}', "Run it again"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    path = tmp_path / "r.json"
    path.write_text(sealed(json.loads(text)) if text.startswith('{"') else text)
    with pytest.raises(InputError, match=says):
        Record.load(path)


def test_a_missing_record_is_said(tmp_path):
    with pytest.raises(InputError, match="cannot read record"):
        Record.load(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file_and_no_scraps(tmp_path, monkeypatch):
    path = write_text(tmp_path / "r.json", "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(OutputError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_an_output_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for bad in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(OutputError, match="cannot write to output folder"):
            make_folder(bad)
    with pytest.raises(OutputError, match="output folder"):
        make_folder("a\0b")


def test_records_of_every_schema_still_load():
    folder = Path(__file__).parent
    for schema in range(1, SCHEMA + 1):  # a new schema comes with a sample of it, and a migration
        record = Record.load(folder / f"record-schema-{schema}.json")
        assert record.figures["rir"]["value"] == pytest.approx(3.58395, rel=1e-5)
        assert "frontier" in render(record)
        assert record.digest() == Record(**vars(record)).digest()


def test_reproductions_of_version_0_1_are_refused_with_the_reason(tmp_path):
    early = sealed({**sample().to_dict(), "kind": "reproduce", "created": "2026-11-15T09:26:10"})
    (tmp_path / "r.json").write_text(early)
    with pytest.raises(InputError, match="version 0.1, whose loop was not the released one"):
        Record.load(tmp_path / "r.json")


def test_a_record_of_a_source_tree_names_its_commit():
    if not (ROOT / ".git").exists():
        pytest.skip("no source tree of git")
    assert re.fullmatch(r"[0-9a-f]{40}\+?", str(sample().commit))


def test_a_saved_record_is_json_with_its_digest(tmp_path):
    record = Record("bench", "x", {"nan": float("nan")})
    values = json.loads(record.save(tmp_path / "r.json").read_text())
    assert values.pop("checksum") == record.digest() == Record.load(tmp_path / "r.json").digest()
    assert values == record.to_dict()
