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
from immunis.report.card import KINDS, render
from immunis.report.format import defined, number
from immunis.report.model_card import model_card
from immunis.report.query import LARGE, leading, outlines, per_class, telling_classes
from immunis.report.tables import definition_table, verdicts
from immunis.report.text import DEFINITION, headline, verdict

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
        assert defined(row["rir"]["value"]) in text
    assert text.index("did not stop the attacker") < text.index('<table class="heat">')
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
            assert attributes.get(key, "#").startswith("#")
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in text
    assert set(page.scripts) == {"record"}  # data: nothing runs
    assert "http://" not in text and "https://" not in text
    assert embedded(text) == record.to_dict()


def seen(text, tag="article"):
    """What a reader sees of a page, tags left out."""
    return " ".join(entities.unescape(re.sub("<[^>]*>", " ", text.split(f"<{tag}", 1)[1])).split())


def test_the_card_leads_with_a_badge_and_the_highest_score_of_any_attacker(audit_record):
    text = render(audit_record)
    first, rest = seen(text).split("What an attacker gains for the price")
    assert "erase Partly The best attack (invert_last) is" in first
    assert "It does not stop an attacker who tunes a probe of any layer" in first
    assert "It stops an attacker who reads outputs and features." in first
    best = {
        name: max(row[name]["score"]["mean"] for row in ran(audit_record, name))
        for name in ("original", "erase", "untrained")
    }
    shown = [f"{best[name]:.1%}" for name in best]
    assert f"{shown[0]} original → {shown[1]} defended → {shown[2]} untrained" in first
    assert "Attacks run 25 of 27" in first and "Primary score ±0.0 points" in first
    chart = text.index('<svg class="chart wide-only"')
    assert f"In the end: original {shown[0]}, erase {shown[1]}, untrained" in text[chart:]
    assert rest.index("Not tested, or known to break it") < rest.index("Details")
    assert headline(audit_record) in rest and "disjoint from the defender" in rest
    for attack in audit_record.settings["attacks"]:
        assert f'<th scope="row">{attack}</th>' in text
    lora = audit_record.with_settings(not_run={"lora": "low-rank fine-tuning"})
    assert "Not run: lora (low-rank fine-tuning)." in render(lora)
    assert "Attacks run 25 of 28" in seen(render(lora))
    assert "holds no spectra" not in text
    models = audit_record.figures["models"].items()
    bare = {n: {k: v for k, v in row.items() if k != "spectra"} for n, row in models}
    assert "holds no spectra" in render(changed(audit_record, models=bare))  # an older one


def ran(record, name):
    rows = record.figures["attacks"].values()
    return [row for row in rows if row.get(name, {}).get("status") == "done"]


def endless(text):
    """Intervals without an end, and figures that are none, on a page."""
    shown = seen(text, "main").split("Settings and origin")[0]
    return [s for s in ("to ∞", "0–∞", "inf%", "nan", "to −∞", "None") if s in shown]


def test_no_card_shows_an_interval_without_end(audit_record):
    assert endless(render(audit_record)) == []


@pytest.mark.slow
def test_every_committed_record_has_a_card_without_an_endless_interval():
    found = {path: Record.load(path) for path in sorted(RESULTS.glob("*.json"))}
    cards = {path.stem: render(record) for path, record in found.items() if record.kind in KINDS}
    assert len(cards) > 25
    assert {name: bad for name, text in cards.items() if (bad := endless(text))} == {}


def test_the_models_of_the_first_chart_look_unlike_even_among_many():
    record = Record.load(RESULTS / "audit-mnist-digits.json")
    text = render(record)
    chart = text.split('<svg class="chart wide-only"')[1].split("</svg>")[0]
    assert re.findall(r'class="line (\w+)"', chart) == ["s0", "s1", "su"]
    assert "probe-deep" in chart and leading(record) == "probe-deep"
    lines = set(re.findall(r'<li>.*?class="line (\w+)".*?</li>', text.split("Learning curves")[1]))
    assert len(lines) == 8  # seven of eight models, and the control


def test_a_card_of_a_defence_and_its_audit_does_not_contradict_itself(evil_records):
    together = seen(render(*evil_records), "main")
    assert "No attacker" not in together and "no attacker run" not in together
    assert "records side by side" not in together  # they are about one model
    assert "How it was immunized: erase" in together
    alone = seen(render(evil_records[0]))
    assert "Not audited" in alone and "No attacker has been run" in alone
    assert model_card(*evil_records).count("## For a review") == 1  # the audit answers
    assert model_card(evil_records[0]).count("## For a review") == 1


def test_audits_of_the_same_models_are_judged_by_the_strongest_attack_of_all():
    probes, tuning = (
        Record.load(RESULTS / f"audit-tiny-imagenet-cars-resnet18-{name}.json")
        for name in ("held", "tuning")
    )
    text = seen(render(probes, tuning), "main")
    assert "14.5%" in seen(render(probes)).split("What an")[0]
    assert "19.5% original → 19.2% defended" in text.split("What an")[0]
    assert text.count("An attacker who") == 1 and "Attacks run 17 of 17" in text


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
    models = json.loads(json.dumps(audit_record.figures["models"]))
    models["frontier"]["broken"] = True
    record = changed(audit_record, models=models)
    assert "broken, not immune" in verdict(record, "frontier")
    assert "frontier (broken)</li>" in render(record)
    for row in models.values():
        row["broken"] = True
    assert "broken, not immune" in headline(changed(record, models=models))


def test_a_refused_immunization_fails_in_the_lead_with_its_audit_and_alone(evil_records):
    score = {"before": 0.998, "after": 0.33, "most_lost": 0.05, "kept": False, "split": "test"}
    refused = changed(evil_records[0], primary_score=score)
    for page in (seen(render(refused)), seen(render(refused, evil_records[1]))):
        assert "Fails The model lost its primary task: primary accuracy −66.8 points" in page
        assert "Not audited" not in page


def test_an_audit_without_a_defence_speaks_of_the_original(audit_record):
    models = {"original": audit_record.figures["models"]["original"]}
    record = changed(audit_record, models=models)
    assert headline(record).startswith("original: the highest score of")
    assert "original No defence" in seen(render(record))


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
    free = changed(immunized, ceiling=math.inf)
    assert f"RIR* = ∞ ({number(free.figures['shared_ceiling'])} without free" in render(free)
    network = changed(immunized, ceiling=None)
    assert "no ceiling for a trained network" in render(network)


def test_definition_3_1_is_shown_wherever_rir_is(evil_records, demo_record, audit_record):
    for record in evil_records:
        (cells,) = (row[1:] for row in definition_table(record).rows)
        for text in (render(record), model_card(record)):
            assert DEFINITION.replace("'", "&#39;") in text or DEFINITION in text
            assert all(cell in text for cell in cells)
    assert "no (× 0.0139)" in render(demo_record)
    assert "Definition 3.1" not in render(audit_record)  # an earlier version wrote it
    unknown = {"figure": None, "holds": None}
    cells = verdicts({"harmful": unknown, "primary": unknown, "score": unknown})
    assert cells == [*["not defined: ranks differ"] * 2, "not measured"]


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
    assert [tag for tag, _ in page.tags].count("script") == 2  # the records, as data
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
    assert text.count('<span class="badge') == 2 and "highest score of any attack" in seen(
        text, "main"
    )
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
        if name in ("paper", "tile", "line", "heat"):
            continue
        for ground in ("paper", "tile"):
            wanted = 4.5 if name in ("ink", "soft", "good", "warn", "bad", "none") else 3
            if ground == "paper" or wanted > 3:
                assert contrast(colour, colours[ground]) >= wanted, (name, ground)
    strongest = mixed(colours["heat"], colours["paper"], 0.7)
    assert contrast(colours["ink"], strongest) >= 4.5
    assert "color-mix(in srgb, var(--heat) 70%" in css


def mixed(colour, ground, share):
    parts = [(int(colour[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in parts)


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


PROBE = """
function look(frame) {
  const page = frame.contentDocument, found = {};
  const all = function (what) { return Array.from(page.querySelectorAll(what)); };
  const drawn = all("svg.chart").filter(function (e) { return e.getBoundingClientRect().width; });
  found.wide = page.documentElement.scrollWidth > frame.clientWidth;
  found.drawn = drawn.length;
  found.fills = drawn[0].getBoundingClientRect().width / page.querySelector("main").clientWidth;
  found.lines = drawn[0].querySelectorAll(".line").length;
  found.tiles = page.querySelector(".tiles").getBoundingClientRect().bottom;
  found.unnamed = all("svg.chart, .wide").filter(function (e) {
    return !e.getAttribute("aria-label");
  }).length;
  found.clipped = all(".means th, .means td").filter(function (e) {
    return e.scrollWidth > e.clientWidth + 1;
  }).length;
  found.reached = all(".wide").every(function (e) { return e.tabIndex === 0; });
  const folded = all("details");
  found.open = folded.filter(function (e) { return e.open; }).length;
  folded.forEach(function (e) { e.querySelector("summary").click(); });
  found.opened = folded.filter(function (e) { return e.open; }).length === folded.length;
  found.spills = page.documentElement.scrollWidth > frame.clientWidth;
  const colours = getComputedStyle(page.querySelector("body"));
  found.dark = colours.backgroundColor === "rgb(20, 24, 30)";
  const chart = getComputedStyle(page.querySelector("svg text"));
  found.ink = chart.fill;
  return found;
}
window.onload = function () {
  const all = Array.from(document.querySelectorAll("iframe")).map(look);
  document.getElementById("found").textContent = JSON.stringify(all);
};
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_cards_work_in_a_browser_wide_and_narrow(audit_record, evil_records, tmp_path, dark):
    frames = [
        f'<iframe style="width:{width}px;height:800px;border:0" srcdoc="{entities.escape(text)}">'
        "</iframe>"
        for text, width in (
            (render(audit_record), 1280),
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
        "--window-size=1300,900", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
    ]  # fmt: skip
    done = subprocess.run(
        ["chromium", *flags, "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S).group(1)
    wide, narrow, evil = json.loads(entities.unescape(found))
    for each in (wide, narrow, evil):
        assert not each["wide"] and not each["spills"]
        assert each["lines"] == 3 and each["fills"] > 0.98
        assert each["unnamed"] == each["clipped"] == 0 and each["reached"]
        assert each["open"] == 0 and each["opened"]
        assert each["dark"] == dark
    assert wide["tiles"] < 400 and narrow["tiles"] < 844  # verdict and figures on the first screen
