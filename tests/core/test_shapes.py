"""A record that does not fit the shape of its kind is refused in words; all others are shown."""

import copy
import dataclasses
import itertools
import json

import pytest
import torch

import immunis.paper.figures  # noqa: F401 - adds those of a reproduction
from helpers import RESULTS
from immunis import InputError, Record, audit, immunize, measure
from immunis.core.files import sealed
from immunis.report.card import KINDS, render
from immunis.report.figures import figures_of
from immunis.report.model_card import model_card

CASES = {
    "demo": "demo",
    "audit": "audit-digit-parity",
    "house-prices": "reproduce-house-prices",
    "mnist": "reproduce-mnist",
}
FREE = {"attacks": 2, "transfer": 3, **dict.fromkeys(("curves", "path", "maps", "pairs"), 1)}
FREE |= dict.fromkeys(("models", "worst_case", "methods", "predictors", "seconds", "versions"), 1)


def paths(value, path=()):
    """Every place of a record."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value[:1]):
            yield from paths(item, (*path, key))


def generic(path):
    """A path without the names of models, attacks and methods."""
    named = {i + d for i, key in enumerate(path) for d in range(1, 1 + FREE.get(key, 0))}
    return tuple("*" if i in named else key for i, key in enumerate(path))


def forged(case, value):
    """A record as it was written, with one place after another missing or replaced."""
    whole = json.loads((RESULTS / f"{CASES[case]}.json").read_text())
    whole.pop("checksum", None)
    whole["settings"].pop("recipe", None)
    if case == "audit":
        few = ("gd_line_search", "batchnorm_only")
        whole["figures"]["attacks"] = {name: whole["figures"]["attacks"][name] for name in few}
    for *path, last in {generic(path): path for path in reversed([*paths(whole)])}.values():
        made = copy.deepcopy(whole)
        place = made
        for key in path:
            place = place[key]
        if value == "missing":
            del place[last]
        else:
            place[last] = value
        yield [*path, last], made


def load(values, folder):
    path = folder / "r.json"
    path.write_text(sealed(values))
    return Record.load(path)


def show(record, pictures):
    if record.kind in KINDS and (record.kind != "demo" or pictures):
        render(record)
    if record.kind == "audit":
        model_card(record)
    for draw in figures_of(record).values() if pictures else ():
        draw(record)


def forge(case, value, folder, pictures=False, stride=1):
    """Show a record with one place after another forged; return how many were refused."""
    refused = 0
    for path, values in itertools.islice(forged(case, value), 0, None, stride):
        try:
            show(load(values, folder), pictures)
        except InputError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{path} = {value!r:.40}") from error
    return refused


def test_an_audit_that_lost_a_part_is_refused_in_words_or_shown(tmp_path):
    assert forge("audit", "missing", tmp_path, stride=4) > 10


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, "text", {}, [], -1, 10**400], ids=range(6))
def test_a_forged_audit_is_refused_in_words_or_shown(value, tmp_path):
    assert forge("audit", value, tmp_path) > 20


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_record_that_lost_a_part_is_refused_in_words_or_drawn(case, tmp_path):
    assert forge(case, "missing", tmp_path, pictures=True, stride=11) > 2


def test_the_message_names_the_path_and_what_was_expected(tmp_path):
    values = json.loads((RESULTS / "audit-digit-parity.json").read_text())
    del values["checksum"], values["figures"]["models"]["original"]["primary"]
    with pytest.raises(InputError, match=r"r\.json: figures\.models\.original\.primary is missing"):
        load(values, tmp_path)
    values["figures"]["models"]["original"]["primary"] = "high"
    with pytest.raises(InputError, match=r"primary is 'high'; expected a number\."):
        load(values, tmp_path)


def test_what_the_commands_write_fits(pair):
    linear = immunize(torch.eye(5), *pair, "erase")
    models = {"original": torch.eye(5), "erase": linear}
    found = audit(models, *pair, attacks=["ridge", "lora"], effort={"seeds": 1, "budget": 2})
    for record in (measure(*pair).record, linear.record, found.record):
        assert record.checked().digest() == record.digest()


def test_a_name_like_a_special_float_stays_a_name(pair, tmp_path):
    done = immunize(torch.eye(5), *pair, "erase").record
    named = {**done.figures["per_class"], "classes": ["NaN", "Infinity", "-Infinity"]}
    figures = {**done.figures, "per_class": named}
    found = Record.load(dataclasses.replace(done, figures=figures).save(tmp_path / "r.json"))
    assert found.figures["per_class"]["classes"] == ["NaN", "Infinity", "-Infinity"]
    assert "Infinity</th>" in render(found)
