import json
import shutil

import pytest
import torch
from torch import nn

import immunis.paper.figures  # noqa: F401 - adds those of a reproduction
from helpers import RESULTS
from immunis import InputError, Record, immunize, measure
from immunis.core.files import sealed
from immunis.report.figures import figures_of, norm_ratios, overview, spectra, write_figures
from immunis.report.query import depths, outlines

AUDIT = {"cost", "scores", "advantage", "curves"}


def record(name):
    return Record.load(RESULTS / f"{name}.json")


def test_figures_are_png_or_pdf_name_their_record_and_are_the_same_each_time():
    demo = record("demo")
    for draw in (overview, spectra, norm_ratios):
        image = draw(demo)
        assert image[:8] == b"\x89PNG\r\n\x1a\n"
        assert demo.digest().encode() in image
    assert overview(demo) == overview(demo)
    pdf = overview(demo, "pdf")
    assert pdf[:5] == b"%PDF-" and demo.digest().encode() in pdf
    assert b"/Type3" not in pdf  # publishers refuse it


def test_every_kind_of_record_has_its_figures(pair):
    assert set(figures_of(record("demo"))) == {"overview", "spectra", "norm_ratios"}
    assert set(figures_of(record("audit-digit-parity"))) == AUDIT | {"spectra"}
    assert set(figures_of(record("audit-digits-cnn"))) == AUDIT | {"spectra", "depths"}
    older = record("audit-digit-parity")
    for row in older.figures["models"].values():
        del row["spectra"]
    assert set(figures_of(older)) == AUDIT  # as before records kept spectra
    assert "heat-maps" in figures_of(record("reproduce-mnist"))
    linear = immunize(torch.eye(5), *pair, "erase").record
    assert set(figures_of(linear)) == {"spectra"}
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    how = {"layers": ["0"], "steps": 2, "batch": 16, "harmful_batch": 30}
    trained = immunize(network, *pair, "probe", training=how).record
    assert set(figures_of(trained)) == {"spectra", "history"}
    for draw in figures_of(trained).values():
        assert draw(trained)[:4] == b"\x89PNG"
    assert set(figures_of(measured := measure(*pair).record)) == {"spectra"}
    assert spectra(measured)[:4] == b"\x89PNG"
    with pytest.raises(InputError, match="has no figures"):
        figures_of(Record("bench", "speed", {}))


def test_figures_of_an_audit_are_drawn_whatever_it_lacks(tmp_path):
    audit = record("audit-digit-parity")
    for draw in figures_of(audit).values():
        assert draw(audit)[:4] == b"\x89PNG"
    values = json.loads(audit.to_json())
    values["figures"]["attacks"] = {
        "ridge": {name: {"status": "failed", "reason": "x"} for name in ("original", "untrained")}
    }
    values["figures"]["models"] = {"original": values["figures"]["models"]["original"]}
    path = tmp_path / "bare.json"
    path.write_text(sealed(values))
    bare = Record.load(path)
    assert set(figures_of(bare)) == AUDIT - {"advantage", "curves"} | {"spectra"}
    for draw in figures_of(bare).values():
        assert draw(bare)[:4] == b"\x89PNG"


def test_depths_are_the_best_of_each_stage_of_all_probes_and_of_fine_tuning():
    audit = record("audit-digits-cnn")
    rows = {attack: of["probe"] for attack, of in audit.figures["attacks"].items()}
    found = depths(audit, "probe")
    assert [*found] == ["0.0", "1.0", "2.0", "all probes", "fine-tuned"]
    assert found["1.0"] == max(rows[a]["layers"]["1.0"] for a in ("earlier_layer", "maps"))
    assert found["2.0"] == rows["maps"]["layers"]["2.0"]
    tuned = [rows[attack]["score"]["mean"] for attack in ("finetune_all", "reinit_last")]
    assert found["fine-tuned"] == max(tuned)
    others = [
        row["score"]["mean"] for a, row in rows.items() if a not in ("finetune_all", "reinit_last")
    ]
    assert found["all probes"] == max(others)
    for name in audit.settings["families"]:  # of an audit of the last features alone
        for row in audit.figures["attacks"][name].values():
            row.pop("layers", None)
    assert depths(audit, "probe") == {}
    assert "depths" not in figures_of(audit)


def test_long_spectra_are_thinned_and_keep_both_ends(pair):
    linear = immunize(torch.eye(5), *pair, "erase").record
    spectrum = {
        "condition_number": 1e3, "rank": 1000, "dimension": 1024, "samples": 9,
        "eigenvalues": [10.0 ** (-i / 333) for i in range(1000)] + [0.0] * 24,
    }  # fmt: skip
    linear.figures["spectra"]["primary"]["after"] = spectrum
    found = outlines(linear)["primary"]["after"]
    assert len(found.places) <= 64
    assert (found.places[0], found.places[-1], found.values[0]) == (1, 1000, 1.0)


def test_figures_of_several_records_are_told_apart(tmp_path, monkeypatch):
    one = {"one": lambda record, kind: b"x"}
    monkeypatch.setattr("immunis.report.figures.figures_of", lambda record: one)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(RESULTS / "demo.json", tmp_path / folder / "record.json")
    files = [tmp_path / "a" / "record.json", tmp_path / "b" / "record.json", RESULTS / "demo.json"]
    made = write_figures([*files, RESULTS / "demo.json"], tmp_path / "out")
    stems = ["a-one", "b-one", "demo-one", "demo-2-one"]
    assert [path.name for path in made] == [f"{s}.{kind}" for s in stems for kind in ("png", "pdf")]
    assert [path.name for path in write_figures(files[:1], tmp_path / "x")] == [
        "a-one.png",
        "a-one.pdf",
    ]
    with pytest.raises(InputError, match="cannot read"):
        write_figures([tmp_path / "none.json"], tmp_path / "y")
    monkeypatch.undo()
    path = tmp_path / "hollow.json"
    path.write_text(sealed({"kind": "reproduce", "name": "x", "figures": {}, "schema": 1}))
    with pytest.raises(InputError, match="name is 'x'; expected 'house-prices', 'mnist'"):
        write_figures([path], tmp_path / "y")
    assert not (tmp_path / "y").exists()
