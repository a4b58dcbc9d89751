"""Attacks are found, named and grouped."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import immunis.attacks
from helpers import doc_code
from helpers.arenas import arena_for
from immunis import SettingsError
from immunis.attacks import ATTACKS, FAMILIES, GROUPS, PRESETS, PROBES, check_space, select
from immunis.attacks.contract import Attack
from immunis.attacks.search import space_of


def test_an_attack_is_named_by_its_file_and_each_file_is_found():
    folder = Path(immunis.attacks.__file__).parent
    for family, name in FAMILIES.items():
        files = {p.stem for p in (folder / name).glob("*.py")} - {"__init__"}
        assert {attack.name for attack in GROUPS[family]} == files
        assert all(attack.summary for attack in GROUPS[family])
    assert sum(map(len, GROUPS.values())) == len(ATTACKS)


def test_settings_that_are_not_given_by_name_are_refused():
    with pytest.raises(SettingsError, match="expected values to search, by name"):
        Attack(lambda arena, settings: [], ["a"])


def test_a_settings_name_that_no_attack_has_is_refused():
    check_space(["rate", "probe", "layer"])
    with pytest.raises(SettingsError, match="did you mean 'rate'"):
        check_space(["rat"])
    for attack in ATTACKS.values():
        check_space(space_of(attack, arena_for(attack)))


def test_the_three_most_telling_probes_come_first():
    assert [probe.name for probe in PROBES][:3] == ["ridge", "mlp", "logistic"]


def test_attacks_that_a_defence_is_trained_or_stopped_against_say_so():
    """The judge is ridge; methods name descent, kernels, neighbours, stages and fine-tuning."""
    known = {attack.name for attack in ATTACKS.values() if attack.anticipated}
    assert known >= {"ridge", "gd_line_search", "kernel", "knn", "earlier_layer", "finetune_all"}
    assert {"reinit_first", "early_head", "lora", "float64", "renormalise"} <= set(ATTACKS) - known


def test_presets_and_names():
    quick, budget = select("quick")
    assert {a.name for a in quick} == set(PRESETS["quick"][0])
    assert budget.tuning < PRESETS["full"][1].tuning
    _, budget = select("standard")
    wanted = {"finetune_all": 1000, "adam": 250, "ridge": 250, "primary_first": 550}
    assert {name: budget.of(ATTACKS[name]) for name in wanted} == wanted
    assert set(PRESETS["standard"][0]) == set(ATTACKS)
    assert {a.name for a in select("full")[0]} == set(ATTACKS)
    assert [a.name for a in select(["ridge", "ridge", "knn"])[0]] == ["ridge", "knn"]
    assert [a.name for a in select("ridge,knn")[0]] == ["ridge", "knn"]
    for bad, says in (
        ("quik", "did you mean 'quick'"),
        (["rigde"], "did you mean 'ridge'"),
        ([], "at least one"),
    ):
        with pytest.raises(SettingsError, match=says):
            select(bad)


def test_the_page_on_adding_an_attack_is_true(tmp_path):
    """One file in one folder: the attack is listed, searched and audited."""
    package = tmp_path / "immunis"
    shutil.copytree(Path(immunis.__file__).parent, package, ignore=shutil.ignore_patterns("__py*"))
    page = doc_code.blocks(doc_code.ROOT / "docs" / "add-an-attack.md")
    (file,) = (block for block in page if block.title)
    (package / "attacks" / "probes" / file.title).write_text(file.code, encoding="utf-8")
    (command,) = (block for block in page if block.language == "console")
    (audit,) = (block for block in page if block.language == "python" and not block.title)
    ((_, *words),) = doc_code.commands(command)
    listed, row = (
        subprocess.run(
            [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path, check=True, capture_output=True, text=True,
        ).stdout
        for arguments in (["-m", "immunis", *words, "--json"], ["-c", audit.code])
    )  # fmt: skip
    mine = {"name": "nearest_mean", "summary": "Answer with the nearest class mean"}
    assert {**mine, "family": "probes"} in json.loads(listed)["attacks"]
    assert float(row.split()[0]) > 0.8 and "shrink" in row
