"""A recipe that cannot be run is refused before anything runs."""

import time

import pytest

from immunis import InputError, SettingsError
from immunis.recipes import load_recipe


def recipe(folder, text):
    (folder / "r.toml").write_text(text)
    return load_recipe(folder / "r.toml")


TRAINED = "[model]\nnetwork = [8]\n[training]\nsteps = 1\n[method]\nname = "

DIGITS = "[data]\nsource = 'digits'\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = '" + "a" * (1 << 19) + "'", "has over 262,144 bytes"),
        ("x = " + "[" * 100_000, "nested too deeply"),
        ("x = " + "{a=" * 50_000, "nested too deeply|not valid TOML"),
        ("[data]\nsource = 'digits'\n[method]\n" + "a." * 100_000 + "a = 1", "nested too deeply"),
        ("x = '" + "a" * 200_000 + "'\n" + "'a b'." * 60 + "a = 1", "nested too deeply"),
        ("x = " + "9" * 100_000, "not valid TOML|unknown key"),
        ('[data]\nsource = \'__import__("os").system("true")\'', "unknown data source"),
    ],
    ids=["size", "depth", "tables", "keys", "quoted", "digits", "code"],
)
def test_absurd_recipes_are_refused_at_once(tmp_path, text, says):
    began = time.process_time()
    with pytest.raises((SettingsError, InputError), match=says):
        recipe(tmp_path, text)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[audit]\nseeds = 2_000_000_000", "seeds=2000000000: expected at most 1,000"),
        ("[audit]\nbudget = 2_000_000_000", "budget=2000000000: expected at most 10,000,000"),
        ("[audit]\nseeds = 999\nbudget = 10_000_000", "seeds=999 times budget=10000000: expected"),
        ("[audit]\ntrials = 2_000_000_000", "trials=2000000000: expected at most 100,000"),
        ("[audit]\nvariants = 1_000_000", "variants=1000000: expected at most 1,000"),
        ("[audit]\noriginals = 1_000_000", "originals=1000000: expected at most 1,000"),
        (f"[method]\nname = 'condition'\nsteps = {10**15}", f"steps={10**15}: expected at most"),
        (f"[model]\nnetwork = [8]\n[training]\nsteps = {10**15}", "steps=.*expected at most"),
        ("[model]\nnetwork = [8]\n[training]\nepochs = 1e15", "epochs=.*at most 1,000,000"),
        ("[model]\nnetwork = [8]\n[pretrain]\nevaluate = 2_000_000_000", "evaluate=.*at most"),
        ("[model]\nnetwork = [8]\n[training]\nworkers = 2_000_000_000", "workers=.*at most"),
        ("[method]\nname = 'imma'\ninner_steps = 2_000_000_000", "inner_steps=.*at most 1,000"),
        ("[method]\nname = 'condition'\nbatch_size = 2_000_000_000", "batch_size=.*at most"),
        (f"{TRAINED}'imma'\nsteps = 1001", "steps=1001: expected at most 1,000"),
        ("[model]\nnetwork = [8]\n[training]\npatience = 2_000_000_000", "patience=.*at most"),
        ("[model]\nnetwork = [2_000_000_000]", "widths of the network.*at most 65,536"),
        ("[model]\nnetwork = [" + "8, " * 2000 + "]", "2000 layers.*at most 100"),
    ],
)
def test_work_without_end_is_refused_before_it_begins(tmp_path, text, says):
    with pytest.raises(SettingsError, match=says):
        recipe(tmp_path, DIGITS + text)
