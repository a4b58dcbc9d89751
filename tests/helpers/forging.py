"""Records that somebody forged: hostile text in any place of any kind of record, sealed again.

``shown`` makes everything that is made of a record, and ``injected`` says what of the hostile text
works there: as HTML, a link, YAML, LaTeX or a formula.
"""

import copy
import csv
import functools
import io
import json
import re
import tempfile
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import torch
import yaml
from markdown_it import MarkdownIt

import immunis.paper.figures
from helpers import RESULTS
from helpers.tasks import make_task
from immunis import Record, audit, immunize, measure
from immunis.core.files import sealed
from immunis.report import audit_tables, tables
from immunis.report.card import KINDS, render
from immunis.report.figures import figures_of
from immunis.report.loading_code import from_hub, section
from immunis.report.model_card import model_card
from immunis.report.view import page

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><svg onload=alert(1)>",
    "[click](https://evil.example)", "\\[click](https://evil.example)",
    "![x](https://evil.example/i.png)", "<https://evil.example>", "\\<b>bold</b>",
    "[a][b]\n\n[b]: https://evil.example", "x\n# heading\n<div>", "`` ` ``` ```html\n<b>",
    "| a | b\n|---|---", "---\nlicense: evil\n---", "a: b # c", "\ufeffx", "x\uffff", "a\u2028b",
    "\u202etxt", "%\n\\input{/etc/passwd}", "\\end{tabular}\\input{x}", "[2cm] x", "*x",
    "a & b \\\\", "=HYPERLINK(\"https://evil.example\")", "+1+cmd|' /C calc'!A0", "-2+3",
    "@SUM(1)", "\t=1", " =1+1", "\n=1+1", "\ufeff=1+1", "＝1+1", "＋1", "－1+1", "＠SUM(1)",
    "a;=1+1", "a\t=1+1", 'a";"=1+1',
    "$\\frac{$", "$x$ $", "\\$", "_hidden", "__", "{{ 7*7 }}", "{% raw %}",
    "javascript:alert(1)", "", "x" * 5000, "Infinity", "\x1b[31m", "../../x", "&lt;script&gt;",
    "&#x5b;a](https://evil.example)", "https://evil.example", "www.evil.example", "me@evil.example",
    "$$\\href{https://evil.example}{x}$$",
)  # fmt: skip
FREE = (
    "models",
    "attacks",
    "methods",
    "not_run",
    "versions",
    "worst_case",
    "data",
    "recipe",
    "primary_change",
)
LIVE = r"(?i)https?://|www\.|\w@\w|\$\$|\$\w[^$]*\w?\$"  # in text, for GitHub's Markdown
COMMANDS = (  # of LaTeX, that a table is made of
    r"begin|end|toprule|midrule|bottomrule|textbackslash|textasciitilde|textasciicircum|kappa|rho"
    r"|varepsilon|pm|infty|gg|times|geq|dots|[&%#_${}\\]"
)


@functools.cache
def originals():
    """One small record of every kind that is made into something."""
    pair = make_task(80, seed=1, name="primary"), make_task(80, seed=2, name="harmful", shift=0.5)
    done = immunize(torch.eye(5), *pair, "erase")
    models = {"original": torch.eye(5), "erase": done}
    effort = {"seeds": 1, "budget": 4}
    found = audit(models, *pair, attacks=["ridge", "gd_line_search", "lora"], effort=effort)
    recipe = {"data": {"source": "npz", "size": 8}, "model": {"timm": "resnet18"}}
    records = {
        "measure": measure(*pair).record,
        "immunize": done.record.with_settings(recipe=recipe),
        "audit": found.record.with_settings(recipe=recipe, not_run={"knn": "neighbours"}),
        "demo": Record.load(RESULTS / "demo.json"),
    }
    return {kind: record.to_dict() for kind, record in records.items()}


def places(value, path=()):
    """Every place of a record, and every key that is a name."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value[:2]):
            yield from places(item, (*path, key))


def forged(rng, kind):
    """A record with hostile text in one place, or instead of one name wherever that is."""
    values, text = copy.deepcopy(originals()[kind]), HOSTILE[rng.integers(len(HOSTILE))]
    found = list(places(values))
    path = found[rng.integers(len(found))]
    if rng.random() < 0.3:
        return changed(kind, path, text)
    names = sorted({each for each in strings(values) if len(each) > 1})
    return renamed(values, names[rng.integers(len(names))], text)


def changed(kind, path, value):
    """A record with another value in one place."""
    values, (*path, last) = copy.deepcopy(originals()[kind]), path
    functools.reduce(lambda part, key: part[key], path, values)[last] = value
    return values


def strings(value, free=False):
    """Every text in a record, and the keys of its mappings that are names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from [key] if free else []
            yield from strings(item, key in FREE)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def renamed(value, name, text):
    if isinstance(value, dict):
        return {text if k == name else k: renamed(v, name, text) for k, v in value.items()}
    if isinstance(value, list):
        return [renamed(item, name, text) for item in value]
    return text if value == name and isinstance(value, str) else value


def load(values, folder):
    (folder / "r.json").write_text(sealed(values), encoding="utf-8")
    return Record.load(folder / "r.json")


def shown(record, pictures=False):
    """Everything that is made of a record, by its kind; pictures are only drawn."""
    made = {"tables": tables_of(record)}
    if record.kind in KINDS and (pictures or record.kind != "demo"):
        made["html"] = render(record)
    if record.kind in ("immunize", "audit"):
        made["md"] = model_card(record)
        made["hub"] = from_hub(f"{made['md']}\n{section({'library': 'timm'})}", "ada/net")
    if pictures and record.kind != "measure":
        for draw in figures_of(record).values():
            draw(record)
    return made


def tables_of(record):
    made = {
        "measure": [tables.measure_table],
        "immunize": [tables.immunize_table, tables.definition_table],
        "demo": [tables.demo_table, tables.definition_table],
        "audit": [
            audit_tables.audit_table, audit_tables.worst_case_table, audit_tables.highest_table,
            audit_tables.transfer_table,
            audit_tables.predictors_table, tables.definition_table, audit_tables.points_table,
            audit_tables.shares_table, audit_tables.primary_table, audit_tables.models_table,
        ],
    }  # fmt: skip
    return [make(record) for make in made.get(record.kind, [])]


class Page(HTMLParser):
    """The tags of a page, and their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@functools.cache
def usual_tags(kind):
    """The tags of the page of an honest record; of the list of runs for the kind ``runs``."""
    if kind == "runs":
        with tempfile.TemporaryDirectory() as folder:
            load(originals()["audit"], Path(folder))
            text = page(Path(folder), "/")
    else:
        text = shown(Record(**originals()[kind]).checked(), pictures=True)["html"]
    return {tag for tag, _ in Page(text).found}


def html(text, kind, links=r"#[\w-]*data:.*"):
    """Tags that no page of the kind has, code, and links that lead elsewhere."""
    faults = []
    for tag, attributes in Page(text).found:
        link = str(attributes.get("href", "#")) + str(attributes.get("src", "data:"))
        if tag not in usual_tags(kind) or any(a.startswith("on") for a in attributes):
            faults.append(f"html: {tag} {attributes}")
        elif not re.fullmatch(links, link):
            faults.append(f"html: {link}")
    return faults


def injected(record, made):
    """What hostile text does in what was made: a list of faults, empty if it stays text."""
    faults = html(made["html"], record.kind) if "html" in made else []
    faults += html(made["runs"], "runs", r"(#|/card/\d+)data:") if "runs" in made else []
    for text in (made[name] for name in ("md", "hub") if name in made):
        _, head, body = text.split("---\n", 2)
        try:
            if set(yaml.safe_load(head)) != {"library_name", "tags", "model-index"}:
                faults.append(f"yaml: {head[:200]}")
        except yaml.YAMLError as error:
            faults.append(f"yaml: {error}")
        faults += markdown(body)
    for table in made["tables"]:
        faults += markdown(table.markdown()) + latex(table) + formulas(table)
    return faults


def markdown(text):
    """Links, images and HTML in Markdown, and what pages make links or mathematics of."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    flat = [each for token in tokens for each in (token, *(token.children or ()))]
    bad = ("link_open", "image", "html_inline", "html_block")
    faults = [
        f"markdown: {each.type} {each.content or each.attrs}" for each in flat if each.type in bad
    ]
    texts = [
        "".join(t.content for t in each.children if t.type == "text")
        for each in tokens
        if each.children
    ]
    return faults + [f"markdown: {found}" for each in texts for found in re.findall(LIVE, each)]


def latex(table):
    """Commands in LaTeX that no table is made of, and rows that are torn."""
    head, *lines = table.latex().split("\n")
    text = re.sub(rf"\\({COMMANDS})", "", "\n".join(lines))
    faults = [f"latex: {found}" for found in re.findall(r"\\.|[%#]|^\s*[*\[]", text, re.M)]
    if not head.startswith("% ") or len(lines) != len(table.rows) + 6:
        faults.append(f"latex: {len(lines)} lines for {len(table.rows)} rows, {head!r}")
    return faults


def formulas(table):
    """Cells of CSV that a spreadsheet computes, also one that goes by other separators."""
    text = table.csv()
    rows = [*csv.reader(io.StringIO(text, newline="")), re.split(r'[,;|\t\r\n"]', text)]
    return [f"csv: {cell}" for row in rows for cell in row if computes(cell)]


def computes(cell):
    cell = cell.strip(" \t\r\n\ufeff\u200b\u2060")
    try:
        float(cell)
    except ValueError:
        return unicodedata.normalize("NFKC", cell).startswith(("=", "+", "-", "@"))
    return False


def forge(rng, folder, pictures=False):
    """Forge a record and make what is made of it; return if it was accepted, and the faults."""
    values = forged(rng, rng.choice(list(originals())))
    try:
        record = load(values, folder)
        made = {**shown(record, pictures), "runs": page(folder, "/")}
    except immunis.InputError:
        return False, []
    except Exception as error:
        return True, [f"crash: {error!r} of {json.dumps(values)[:200]}"]
    return True, injected(record, made)
