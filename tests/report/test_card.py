import dataclasses
import html as entities
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
import torch

from helpers import RESULTS
from helpers.tasks import make_task
from immunis import InputError, Record, Task, audit, immunize, measure
from immunis.report.card import render
from immunis.report.format import number
from immunis.report.query import LARGE, leading, outlines, per_class, telling_classes
from immunis.report.text import headline, verdict

EVIL = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>[x](javascript:alert(3))"


class Page(HTMLParser):
    """What a page is made of, as a parser sees it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._open = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._open = dict(attrs).get("id", "")
            self.scripts[self._open] = ""

    def handle_endtag(self, tag):
        self._open = None if tag == "script" else self._open

    def handle_data(self, data):
        if self._open is not None:
            self.scripts[self._open] += data


def embedded(text, name="record"):
    return json.loads(Page(text).scripts[name])


@pytest.fixture(scope="module")
def evil_records():
    """An immunization and its audit, in which every name a user can give is an attack."""
    tasks = [
        Task(*(Named(*split.tensors()) for split in (made.train, made.test)), EVIL + made.name)
        for made in (make_task(80, seed=1, name="p"), make_task(80, seed=2, name="h"))
    ]
    theta = torch.eye(5, dtype=torch.float64)
    result = immunize(theta, *tasks, "erase")
    found = audit(
        {"original": theta, EVIL: result}, *tasks, effort={"seeds": 1, "budget": 20},
        attacks=["ridge", "gd_line_search", "knn", "batchnorm_only"],
    )  # fmt: skip
    return result.record.with_settings(recipe={"path": EVIL}), found.record


class Named(torch.utils.data.Dataset):
    """A data set with names of classes."""

    classes = tuple(f"{EVIL}{i}" for i in range(3))

    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


def changed(record, **figures):
    return dataclasses.replace(record, figures={**record.figures, **figures})


def test_the_demo_card_holds_the_records_figures(demo_record):
    text = render(demo_record)
    for name, row in demo_record.figures["methods"].items():
        assert name in text
        assert number(row["rir"]["value"]) in text
    assert text.index("did not stop the attacker") < text.index("<img")
    assert (
        "47.6% under the best defence (erase ε=0.001; a closed-form probe reaches 72.3% there)"
        in text
    )
    assert embedded(text) == demo_record.to_dict()


@pytest.mark.parametrize(
    "name", ["demo", "audit-digit-parity", "audit-tiny-imagenet-cars-resnet18"]
)
def test_a_card_is_one_file_that_needs_no_network(name):
    record = Record.load(RESULTS / f"{name}.json")
    text = render(record)
    assert len(text) < 400_000
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "base")
        for key in ("src", "href"):
            assert attributes.get(key, "#").startswith(("#", "data:image/png;base64,"))
    assert "default-src 'none'" in text
    assert "http://" not in text and "https://" not in text
    assert embedded(text) == record.to_dict()


def test_the_audit_card_leads_with_the_verdict_and_its_threat_model(audit_record):
    text = render(audit_record)
    first = re.search(r'<p class="lead">(.*?)</p>', text, re.S)
    said = entities.unescape(first.group(1))
    assert said == headline(audit_record)
    assert "the best of 25 attacks within 250 steps" in said
    assert "of the original model's help" in said
    assert "primary accuracy ±0.0 points (97.1%)" in said
    chart = text.index('<svg class="chart"')
    assert first.end() < chart < text.index("disjoint from the defender")
    assert "original, frontier, untrained" in text[chart : chart + 300]
    for attack in audit_record.settings["attacks"]:
        assert re.search(f"<option( selected)?>{attack}</option>", text)
    lora = audit_record.with_settings(not_run={"lora": "low-rank fine-tuning"})
    assert "Not run: lora (low-rank fine-tuning)." in render(lora)
    assert "holds no spectra" not in text
    models = audit_record.figures["models"].items()
    bare = {n: {k: v for k, v in row.items() if k != "spectra"} for n, row in models}
    assert "holds no spectra" in render(changed(audit_record, models=bare))  # an older one


def test_figures_that_are_no_numbers_are_left_out(audit_record):
    figures = json.loads(json.dumps(audit_record.figures), parse_float=lambda _: math.nan)
    text = render(dataclasses.replace(audit_record, figures=figures))
    assert "primary accuracy not measured" in text
    assert "nan points" not in text


@pytest.mark.parametrize("lost", ["classes", "predictors", "chance"])
def test_a_record_that_lost_a_part_is_refused_in_words(audit_record, lost):
    figures = {name: part for name, part in audit_record.figures.items() if name != lost}
    with pytest.raises(InputError, match=f"figures.{lost} is missing; expected"):
        render(dataclasses.replace(audit_record, figures=figures))


def test_a_broken_model_is_not_called_immune(audit_record):
    cases = json.loads(json.dumps(audit_record.figures["worst_case"]))
    cases["frontier"] |= {"broken": True, "residual_advantage": math.nan}
    record = changed(audit_record, worst_case=cases)
    assert "broken, not immune" in verdict(record, "frontier")
    assert leading(record) != "frontier"
    models = audit_record.figures["models"]
    models = {**models, "frontier": {**models["frontier"], "broken": True}}
    assert "frontier (broken)</li>" in render(changed(record, models=models))
    for case in cases.values():
        case["broken"] = True
    assert "broken, not immune" in headline(record)


def test_an_audit_without_a_defence_speaks_of_the_original(audit_record):
    models = {"original": audit_record.figures["models"]["original"]}
    record = changed(audit_record, models=models)
    assert headline(record).startswith("original: the best of")
    assert "original" in render(record)


def test_spectra_and_classes_are_shown_where_a_record_holds_them(evil_records):
    immunized, audited = evil_records
    for record, names in ((immunized, ["before", "after"]), (audited, ["original", EVIL])):
        text = render(record)
        assert list(outlines(record)["harmful"]) == names
        assert list(per_class(record)[1]) == names
        assert per_class(record)[0] == [f"{EVIL}{i}" for i in range(3)]
        assert "RIR* =" in text
        assert text.count("Eigenvalues of the") == 2
    spectrum = outlines(audited)["primary"]["original"]
    assert (spectrum.rank, spectrum.dimension, spectrum.places) == (5, 5, [1, 2, 3, 4, 5])
    network = changed(immunized, ceiling=None)
    assert "no ceiling for a trained network" in render(network)


def test_of_many_classes_the_hardest_hit_are_listed(evil_records):
    count = 5 * LARGE
    before = [0.9] * count
    after = [0.9 - 0.001 * i for i in range(count)]
    record = changed(
        evil_records[0],
        per_class={
            "classes": [f"class {i}" for i in range(count)],
            "before": before,
            "after": after,
        },
    )
    text = render(record)
    assert "class 99" in text and '<th scope="row">class 5</th>' not in text
    assert f"each of {count} classes" in text
    assert telling_classes(before, after)[:2] == [count - 1, count - 2]
    missing = [math.nan, *after[1:]]
    assert "class 99" in render(
        changed(record, per_class={**record.figures["per_class"], "after": missing})
    )


def test_everything_a_user_supplies_is_escaped(evil_records):
    text = render(*evil_records)
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 3  # two records and one program
    for tag, attributes in page.tags:
        assert tag != "img"
        assert not any(key.startswith("on") for key in attributes)
        assert "javascript:" not in attributes.get("href", "")
    assert embedded(text) == evil_records[0].to_dict()
    assert embedded(text, "record-2") == evil_records[1].to_dict()
    assert EVIL in entities.unescape(text)


def test_several_records_are_shown_side_by_side(audit_record):
    tiny = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    text = render(audit_record, tiny)
    assert text.index("2 records side by side") < text.index('<p class="lead">')
    assert embedded(text) == audit_record.to_dict()
    assert embedded(text, "record-2") == tiny.to_dict()


def test_records_that_cannot_be_shown_are_refused(pair, demo_record, audit_record):
    with pytest.raises(InputError, match="has no card"):
        render(measure(*pair).record)
    with pytest.raises(InputError, match=r"kind \[1\] has no card"):
        render(dataclasses.replace(demo_record, kind=[1]))
    with pytest.raises(InputError, match="cannot be compared"):
        render(audit_record, demo_record)
    with pytest.raises(InputError, match="came twice"):
        render(audit_record, audit_record)
    with pytest.raises(InputError, match="at least one"):
        render()
    for broken in ({}, {**audit_record.figures, "models": {"original": {}}}):
        with pytest.raises(InputError, match=r"figures\.\S+ is missing; expected a"):
            render(dataclasses.replace(audit_record, figures=broken))


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme, demo_record):
    """WCAG 2.2, AA: 4.5 for text, 3 for marks of a chart."""
    css = re.search("<style>(.*?)</style>", render(demo_record), re.S).group(1)
    block = re.findall(r":root \{(.*?)\}", css, re.S)[scheme]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
    for name, colour in colours.items():
        if name in ("paper", "line", "mark"):
            continue
        light, dark = sorted((luminance(colour), luminance(colours["paper"])), reverse=True)
        wanted = 4.5 if name in ("ink", "soft") else 3
        assert (light + 0.05) / (dark + 0.05) >= wanted, name


PROBE = """
function look(frame) {
  const page = frame.contentDocument, found = {};
  const box = page.querySelector(".curves");
  found.wide = page.documentElement.scrollWidth > frame.clientWidth;
  found.lines = box.querySelectorAll("svg.chart .line").length;
  const before = box.querySelector("svg.chart").innerHTML;
  const attack = box.querySelector(".attack"), cost = box.querySelector(".cost");
  found.chosen = attack.value;
  attack.selectedIndex = (attack.selectedIndex + 1) % 3; attack.dispatchEvent(new Event("change"));
  found.attack = box.querySelector("svg.chart").innerHTML !== before;
  const then = box.querySelector("svg.chart").innerHTML;
  cost.value = "flops"; cost.dispatchEvent(new Event("change"));
  found.cost = box.querySelector("svg.chart").innerHTML !== then;
  const boxes = Array.from(box.querySelectorAll("input"));
  boxes.slice(1).forEach(function (b) { b.click(); });
  found.left = box.querySelectorAll("svg.chart .line").length;
  attack.selectedIndex = attack.options.length - 1; attack.dispatchEvent(new Event("change"));
  found.label = box.querySelector("svg.chart").getAttribute("aria-label");
  found.first = page.querySelector("svg.chart").getBoundingClientRect().bottom;
  const parts = Array.from(page.querySelectorAll("svg.chart, select, input, .wide"));
  found.unnamed = parts.filter(function (e) {
    return !(e.getAttribute("aria-label") || (e.labels && e.labels.length));
  }).length;
  return found;
}
window.onload = function () {
  const all = Array.from(document.querySelectorAll("iframe")).map(look);
  document.getElementById("found").textContent = JSON.stringify(all);
};
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_cards_work_in_a_browser_wide_and_narrow(audit_record, evil_records, tmp_path):
    frames = [
        f'<iframe style="width:{width}px;height:800px;border:0" srcdoc="{entities.escape(text)}">'
        "</iframe>"
        for text, width in (
            (render(audit_record), 1200),
            (render(audit_record), 390),
            (render(evil_records[1]), 390),
        )
    ]
    page = tmp_path / "all.html"
    page.write_text(
        f'<meta charset="utf-8">{"".join(frames)}<pre id="found"></pre><script>{PROBE}</script>',
        encoding="utf-8",
    )
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-extensions",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
        "--window-size=1300,900",
    ]  # fmt: skip
    done = subprocess.run(
        ["chromium", *flags, "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S).group(1)
    wide, narrow, evil = json.loads(entities.unescape(found))
    models = len(audit_record.figures["models"]) + 1
    for seen, count in ((wide, models), (narrow, models), (evil, 3)):
        assert not seen["wide"]
        assert seen["lines"] == count
        assert seen["attack"] and seen["cost"]
        assert seen["left"] == 1
        assert seen["unnamed"] == 0
    assert wide["first"] < 800 and narrow["first"] < 844  # verdict and chart on the first screen
    assert wide["chosen"] == audit_record.figures["worst_case"]["frontier"]["attack"]
    last = list(audit_record.figures["attacks"])[-1]
    assert f"{last}. It reaches: original" in narrow["label"]
