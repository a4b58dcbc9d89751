"""No path of a recipe leads out of its folder."""

import pytest

from helpers.images import write_folders
from immunis import SettingsError
from immunis.recipes import load_recipe


def recipe(folder, text):
    (folder / "r.toml").write_text(text)
    return load_recipe(folder / "r.toml")


@pytest.mark.parametrize(
    "text",
    [
        "[data]\nsource = 'npz'\nprimary = '../secret.npz'\nharmful = 'h.npz'",
        "[data]\nsource = 'npz'\nprimary = 'p.npz'\nharmful = '/etc/passwd'",
        "[data]\nsource = 'npz'\nprimary = 'a/../../p.npz'\nharmful = 'h.npz'",
        "[data]\nsource = 'images'\nprimary = 'p'\nharmful = '/srv/h'",
        "[data]\nsource = 'mnist-pair'\nprimary = 1\nharmful = 2\nfolder = '../..'",
        "[data]\nsource = 'digits'\n[model]\nweights = '/root/w.safetensors'",
        "[data]\nsource = 'digits'\n[model]\ntimm = 'resnet18'\ncheckpoint = '../w.pt'",
        "[data]\nsource = 'images'\nprimary = 'timm:/abs'\nharmful = 'h'",
        "[data]\nsource = 'images'\nprimary = 'p'\nharmful = 'timm:../x'",
        "[data]\nsource = 'images'\nprimary = 'p'\nharmful = 'h'\ntransfer = 'timm:timm:/x'",
        "[data]\nsource = 'digits'\n[model]\ntransformers = '/abs'",
        "[data]\nsource = 'digits'\n[model]\ntransformers = 'a/../../x'",
        "[data]\nsource = 'digits'\n[model]\ntimm = 'local-dir:/abs'",
        "[data]\nsource = 'digits'\n[model]\ntimm = 'LOCAL-DIR:../x'",
        "[data]\nsource = 'digits'\n[model]\ntimm = 'local-dir://host/abs'",
        '[data]\nsource = "digits"\n[model]\ntimm = "local-dir:\\t/abs"',
    ],
)
def test_a_recipe_reads_nothing_outside_its_folder(tmp_path, text):
    with pytest.raises(SettingsError, match="leaves its folder.*--allow-outside"):
        recipe(tmp_path, text)
    assert load_recipe(tmp_path / "r.toml", allow_outside=True).folder == tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "[data]\nsource = 'digits'\n[model]\ntransformers = 'link'",
        "[data]\nsource = 'digits'\n[model]\ntransformers = 'net'",
        "[data]\nsource = 'digits'\n[model]\ntransformers = 'elsewhere'",
        "[data]\nsource = 'digits'\n[model]\ntimm = 'local-dir:link'",
        '[data]\nsource = "digits"\n[model]\ntimm = "local\\t-dir:link"',
        "[data]\nsource = 'digits'\n[model]\ntimm = 'local-dir:net'",
        "[data]\nsource = 'digits'\n[model]\ntimm = 'resnet18'\ncheckpoint = 'net/config.json'",
        "[data]\nsource = 'digits'\n[model]\nweights = 'link/config.json'",
        "[data]\nsource = 'npz'\nprimary = 'link/p.npz'\nharmful = 'h.npz'",
        "[data]\nsource = 'npz'\nfolder = 'link'\nprimary = 'p.npz'\nharmful = 'h.npz'",
        "[data]\nsource = 'images'\nfolder = '.'\nprimary = 'timm:link'\nharmful = 'h'",
    ],
)
def test_neither_links_nor_the_current_folder_lead_out_of_a_recipe(tmp_path, monkeypatch, text):
    asked = []
    monkeypatch.setattr("immunis.recipes.recipe.named_network", lambda *a, **_: asked.append(a[1]))
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    (mine / "elsewhere").mkdir(parents=True)
    (theirs / "net").mkdir(parents=True)
    (mine / "config.json").write_text("{}")
    (theirs / "link").symlink_to(mine)
    (theirs / "net" / "config.json").symlink_to(mine / "config.json")
    monkeypatch.chdir(mine)
    one = recipe(theirs, text)
    with pytest.raises(SettingsError, match="leaves its folder.*--allow-outside"):
        one.extractor(one.tasks().primary)
    assert not asked
    if "digits" in text and "weights" not in text:
        own = load_recipe(theirs / "r.toml", allow_outside=True)
        own.extractor(own.tasks().primary)
        assert len(asked) == 1


def test_folders_of_a_recipe_start_where_the_recipe_is(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("immunis.recipes.recipe.named_network", lambda *a, **_: asked.append(a[1]))
    (tmp_path / "net").mkdir()
    for line in ("transformers = 'net'", "timm = 'local-dir:net'", "timm = 'net'"):
        one = recipe(tmp_path, f"[data]\nsource = 'digits'\n[model]\n{line}")
        one.extractor(one.tasks().primary)
    assert asked == [f"{tmp_path}/net", f"local-dir:{tmp_path}/net", "net"]
    for part in ("own", "harm"):
        for split in ("train", "test"):
            write_folders(tmp_path / "pictures" / part, split)
    names = "primary = 'own'\nharmful = 'harm'\nfolder = 'pictures'\nsize = 8"
    tasks = recipe(tmp_path, f"[data]\nsource = 'images'\n{names}").tasks()
    assert tasks.primary.outputs == 3
