import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from immunis import InputError, Record, Task, immunize, measure
from immunis.card import render
from immunis.demo import demo
from immunis.figures import norm_ratios, overview, spectra
from immunis.tables import number


@pytest.fixture(scope="module")
def demo_record():
    return demo()


def test_the_demo_card_holds_the_records_figures(demo_record):
    html = render(demo_record)
    for name, row in demo_record.figures["methods"].items():
        assert name in html
        assert number(row["rir"]["value"]) in html
    assert len(html) < 600_000
    assert "http" not in re.sub(r'data:image/png;base64,[^"]*', "", html).replace("http-equiv", "")
    embedded = re.search(r'<script type="application/json" id="record">(.*)</script>', html, re.S)
    assert json.loads(embedded.group(1)) == demo_record.to_dict()


def test_figures_are_png_and_the_same_each_time(demo_record):
    for draw in (overview, spectra, norm_ratios):
        image = draw(demo_record)
        assert image[:8] == b"\x89PNG\r\n\x1a\n"
        assert draw(demo_record) == image
        assert demo_record.digest().encode() in image


def test_figures_and_card_can_be_made_from_the_file_alone(demo_record, tmp_path):
    loaded = Record.load(demo_record.save(tmp_path / "r.json"))
    assert spectra(loaded) == spectra(demo_record)
    assert render(loaded) == render(demo_record)


def test_names_that_hold_html_are_escaped(pair):
    evil = "<script>alert(1)</script>"
    primary, harmful = (Task(t.train.tensors(), name=evil + str(i)) for i, t in enumerate(pair))
    import torch

    html = render(immunize(torch.eye(5), primary, harmful, "erase").record)
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html


def test_a_record_without_a_card_is_refused(pair):
    with pytest.raises(InputError, match="has no card"):
        render(measure(*pair).record)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "undefined"),
        (-float("inf"), "−∞"),
        (0.0, "0"),
        (1234.4, "1234"),
        (1e-7, "1.0e-7"),
        (True, "True"),
        (1_000_000, "1,000,000"),
        (9999.9, "1.0e4"),
        (999.7, "1000"),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert number(value) == text


@pytest.fixture(scope="module")
def audit_record():
    return Record.load(Path(__file__).parents[1] / "results" / "audit-digit-parity.json")


def test_the_audit_card_leads_with_the_verdict_and_its_threat_model(audit_record):
    html = render(audit_record)
    assert html.index("keeps") < html.index("<svg")
    assert audit_record.figures["worst_case"]["erase"]["attack"] in html
    assert "disjoint from the defender" in html
    for attack in audit_record.settings["attacks"]:
        assert f"<option>{attack}</option>" in html
    assert "not part of this audit" in html
    assert len(html) < 600_000
    assert "http" not in html
    embedded = re.search(r'<script type="application/json" id="record">(.*?)</script>', html, re.S)
    assert json.loads(embedded.group(1)) == audit_record.to_dict()


def test_a_broken_model_is_not_called_immune(audit_record):
    figures = json.loads(json.dumps(audit_record.figures))
    figures["worst_case"]["erase"]["broken"] = True
    assert "broken, not immune" in render(dataclasses.replace(audit_record, figures=figures))


def test_the_audit_card_escapes_names_of_models(audit_record):
    evil = "<img src=x onerror=alert(1)>"
    text = json.dumps(audit_record.figures).replace('"erase"', json.dumps(evil))
    html = render(dataclasses.replace(audit_record, figures=json.loads(text)))
    assert evil not in html


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_audit_card_draws_its_curves_in_a_browser(audit_record, tmp_path):
    page = tmp_path / "card.html"
    page.write_text(render(audit_record), encoding="utf-8")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
    ]  # fmt: skip
    done = subprocess.run(
        ["chromium", *flags, "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.count("<polyline") == len(audit_record.figures["models"]) + 1
    assert "CONSOLE" not in done.stderr
