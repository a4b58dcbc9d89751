import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from helpers.tasks import row_hashes
from immunis import InputError, SettingsError, Task
from immunis.recipes import bundled, load_recipe
from immunis.recipes.defences import tables_of
from immunis.recipes.recipe import SOURCES


def write(folder, text):
    path = folder / "r.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_recipe_is_valid(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.method["name"]


@pytest.mark.parametrize("name", [n for n in bundled() if n.startswith(("tiny-", "mnist-d"))])
def test_a_pair_whose_test_rows_were_looked_at_is_split_again_and_attacked_in_full(name):
    recipe = load_recipe(name)
    assert recipe.data["resplit"]
    assert recipe.attacks == "standard" and recipe.effort == {"seeds": 3}
    assert recipe.originals >= 3


@pytest.mark.parametrize("name", [n for n in bundled() if n.startswith("efficientnet")])
def test_images_of_112_pixels_are_cached_and_not_held_in_memory(name):
    data = load_recipe(name).data
    assert data["cache"] and not data.get("memory")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "not valid TOML"),
        ("nam = 'x'\n[data]\nsource = 'digits'", "did you mean 'name'"),
        ("name = 'x'", "needs a source"),
        ("data = 3", "must be a table"),
        ("[data]\nsource = 'digit'", "did you mean 'digits'"),
        ("[data]\nsource = 'digits'\nprimry = [1]", "did you mean 'primary'"),
        ("[data]\nsource = 'npz'\nprimary = 'a.npz'", "needs 'harmful'"),
        ("[data]\nsource = 'digits'\n[method]\nname = 'erse'", "did you mean 'erase'"),
        ("[data]\nsource = 'digits'\n[method]\nstrength = 1.0", "unknown method ''"),
        ("[data]\nsource = 'digits'\n[method]\nname = 'erase'\nstrength = 2.0", "strength"),
        ("[data]\nsource = 'digits'\n[model]\ninit = 'zeros'", "unknown init"),
        ("[data]\nsource = 'digits'\n[model]\ntheta = 'x'", "unknown setting of \\[model\\]"),
        (
            "[data]\nsource = 'digits'\n[model]\ninit = 'random'\nweights = 'x'",
            "needs exactly one of",
        ),
        ("[data]\nsource = 'digits'\n[model]\nnetwork = [0]", "at least 1"),
        ("[data]\nsource = 'digits'\n[model]\nnetwork = 'mlp'", "network='mlp'"),
        ("[data]\nsource = 'digits'\n[audit]\nbudget = { probe = 5 }", "did you mean 'probes'"),
        ("[data]\nsource = 'digits'\n[audit]\nbudget = { tuning = 0 }", "at least 1"),
        ("[data]\nsource = 'digits'\n[audit]\nattacks = 'quik'", "did you mean 'quick'"),
        ("[data]\nsource = 'digits'\n[audit]\nattacks = ['rigde']", "did you mean 'ridge'"),
        ("[data]\nsource = 'digits'\n[audit.space]\nrte = [1]", "did you mean 'rate'"),
        ("[data]\nsource = 'digits'\n[audit]\nseeds = 0", "expected at least 1"),
        ("[data]\nsource = 'digits'\n[audit]\nseed = 1", "did you mean 'seeds'"),
        ("[data]\nsource = 'digits'\n[[audit.methods]]\nname = 'erse'", "did you mean 'erase'"),
        ("[data]\nsource = 'digits'\n[method]\nname = 'erase'\ntried = 0", "tried of a method"),
        ("[data]\nsource = 'digits'\n[method]\nname = 'erase'\ntried = 1.5", "whole number"),
        ("[data]\nsource = 'digits'\n[audit]\noriginals = 2", "the same for each seed"),
        (
            "[data]\nsource = 'digits'\n[model]\nnetwork = [4]\n[audit]\noriginals = 3\n"
            "variants = 2",
            "at least one for each of 3 originals",
        ),
        *(
            (
                f"[data]\nsource = 'digits'\n[[audit.methods]]\nname = 'erase'\nlabel = '{label}'",
                "text other than original",
            )
            for label in ("original", "untrained", "from scratch")
        ),
        (
            "[data]\nsource = 'digits'\n[method]\nname = 'probe'\ntraining = {steps = 4}",
            "needs a network",
        ),
        (
            "[data]\nsource = 'digits'\n[[audit.methods]]\nname = 'probe'\ntraining = {}",
            "needs a network",
        ),
        ("[data]\nsource = 'digits'\n[pretrain]", "needs a network"),
        ("[data]\nsource = 'digits'\n[pretrain]\nmix = true", "mix is for harmful rows"),
        ("[data]\nsource = ['digits']", "unknown data source"),
        ("[data]\nsource = 'digits'\nprimary = 3", "primary=3 is of type int"),
        ("[data]\nsource = 'digits'\nprimary = [[0, 1], [2]]", "primary="),
        ("[data]\nsource = 'digits'\nseed = -1", "seed=-1"),
        ("[data]\nsource = 'digits'\nseed = 'x'", "seed='x'"),
        ("[data]\nsource = 'house-prices'\nrows = 2.5", "rows=2.5"),
        ("[data]\nsource = 'house-prices'\nfolder = 3", "folder=3"),
        ("[data]\nsource = 'npz'\nprimary = 3\nharmful = 'x'", "primary=3"),
        ("[data]\nsource = 'mnist-pair'\nprimary = [3]\nharmful = 4", "primary="),
        ("seed = 100000000000\n[data]\nsource = 'digits'", "seed="),
        ("name = '../../escape'\n[data]\nsource = 'digits'", "no leading dot"),
        ("name = 'a/b'\n[data]\nsource = 'digits'", "letters, digits"),
        ('name = "x\\u0000y"\n[data]\nsource = "digits"', "letters, digits"),
        ("seed = -1\n[data]\nsource = 'digits'", "seed"),
        ("seed = true\n[data]\nsource = 'digits'", "seed"),
    ],
)
def test_bad_recipes_are_refused_before_anything_runs(tmp_path, text, says):
    with pytest.raises(SettingsError, match=says):
        load_recipe(write(tmp_path, text))


def test_a_bundled_recipe_gives_the_attacker_more_images_than_the_defence():
    assert load_recipe("efficientnet-lite0-cub").data["attacker_times"] == 2


def test_unknown_and_unreadable_recipes(tmp_path):
    with pytest.raises(SettingsError, match="did you mean 'digits'"):
        load_recipe("digitss")
    with pytest.raises(InputError, match="cannot read recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_recipe(tmp_path / "bytes.toml")


def arrays(folder, name, n=40, **more):
    rng = np.random.default_rng(len(name))
    np.savez(folder / name, x_train=rng.normal(size=(n, 4)), y_train=np.arange(n) % 2, **more)


NPZ = "[data]\nsource = 'npz'\nprimary = 'p.npz'\nharmful = 'hh.npz'\n"


def test_npz_files_are_read_relative_to_the_recipe_and_split_for_the_attacker(tmp_path):
    arrays(tmp_path, "p.npz", x_test=np.zeros((3, 4)), y_test=np.zeros(3, int))
    arrays(tmp_path, "hh.npz")
    tasks = load_recipe(write(tmp_path, NPZ)).tasks()
    assert tasks.primary.test is not None
    defender, attacker = (set(row_hashes(t.train)) for t in (tasks.harmful, tasks.attacker))
    assert len(defender) == len(attacker) == 20
    assert not defender & attacker
    arrays(tmp_path, "own.npz", n=10)
    tasks = load_recipe(write(tmp_path, NPZ + "attacker = 'own.npz'\n")).tasks()
    assert len(row_hashes(tasks.attacker.train)) == 10


def test_bad_npz_files_are_said(tmp_path):
    arrays(tmp_path, "p.npz", x_test=np.zeros((3, 4)))
    arrays(tmp_path, "hh.npz")
    with pytest.raises(InputError, match="lacks y_test"):
        load_recipe(write(tmp_path, NPZ)).tasks()
    (tmp_path / "hh.npz").unlink()
    arrays(tmp_path, "p.npz")
    recipe = load_recipe(write(tmp_path, NPZ))
    with pytest.raises(InputError, match="hh.npz"):
        recipe.tasks()
    np.savez(tmp_path / "hh.npz", x=np.zeros(3))
    with pytest.raises(InputError, match="lacks x_train, y_train; it has x"):
        recipe.tasks()
    (tmp_path / "hh.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(InputError, match="not a plain .npz"):
        recipe.tasks()
    np.savez(tmp_path / "hh.npz", x_train=np.array([{}], object), y_train=np.zeros(1))
    with pytest.raises(InputError, match="not a plain .npz"):
        recipe.tasks()
    (tmp_path / "hh.npz").write_bytes(pickle.dumps([1]))
    with pytest.raises(InputError, match="not a plain .npz"):
        recipe.tasks()


def test_extractors_come_from_init_or_a_file(tmp_path):
    base = "[data]\nsource = 'digits'\n"
    task = Task((torch.randn(20, 3), torch.arange(20) % 2))
    assert torch.equal(load_recipe(write(tmp_path, base)).extractor(task), torch.eye(3).double())
    random = load_recipe(write(tmp_path, base + "[model]\ninit = 'random'\n"))
    assert torch.equal(random.extractor(task), random.extractor(task))
    assert not torch.equal(random.extractor(task), torch.eye(3).double())
    network = load_recipe(write(tmp_path, base + "[model]\nnetwork = [4, 2]\n")).extractor(task)
    assert [m.out_features for m in network if hasattr(m, "out_features")] == [4, 2, 2]
    stored = load_recipe(write(tmp_path, base + "[model]\nweights = 'l.safetensors'\n"))
    with pytest.raises(InputError, match="no such file"):
        stored.extractor(task)
    layer = torch.nn.Linear(3, 3)
    save_file(layer.state_dict(), tmp_path / "l.safetensors")
    assert torch.equal(stored.extractor(task).weight, layer.weight)
    save_file({"w": torch.zeros(2)}, tmp_path / "l.safetensors")
    with pytest.raises(InputError, match="expected 'weight'"):
        stored.extractor(task)
    save_file({"weight": torch.zeros(3, 5), "bias": torch.zeros(7)}, tmp_path / "l.safetensors")
    with pytest.raises(InputError, match="bias \\(7,\\), weight \\(3, 5\\); expected 'weight'"):
        stored.extractor(task)
    (tmp_path / "l.safetensors").write_bytes(pickle.dumps({}))
    with pytest.raises(InputError, match="not a safetensors file"):
        stored.extractor(task)


def test_an_empty_training_table_means_training_with_its_defaults(tmp_path):
    text = "[data]\nsource = 'digits'\n[model]\nnetwork = [8]\n[method]\nname = 'imma'\n"
    plain, trained = (
        load_recipe(write(tmp_path, text)),
        load_recipe(write(tmp_path, text + "[training]\n")),
    )
    own = load_recipe(write(tmp_path, text + "training = {steps = 4}\n"))
    assert plain.training_for(plain.method) is None
    assert trained.training_for(trained.method) == {}
    assert own.training_for(own.method) == {"steps": 4}
    assert own.training_for({"name": "erase"}) is None
    assert "training" in trained.to_dict() and "training" not in plain.to_dict()


def test_data_given_on_the_command_line_is_looked_for_where_the_user_is(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for folder in ("here/mine", "recipes/own"):
        (tmp_path / folder).mkdir(parents=True)
    for place in ("here/mine", "recipes/own", "recipes"):
        x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
        np.savez(tmp_path / place / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    text = "[data]\nsource = 'npz'\nprimary = 'a.npz'\nharmful = 'a.npz'\n"
    recipe = load_recipe(write(tmp_path / "recipes", text))
    monkeypatch.chdir(tmp_path / "here")

    def found(recipe, folder=None):
        return recipe.tasks(folder).primary.train.identity()

    at_own = load_recipe(write(tmp_path / "recipes", text + "folder = 'own'\n"))
    places = [found(recipe), found(recipe, "mine"), found(at_own), found(at_own, "mine")]
    assert places[1] == places[3] and len(set(places)) == 3


def test_a_recipes_own_method_is_compared_where_it_has_a_label():
    found = tables_of(load_recipe("tiny-imagenet-flowers-vit"))
    assert list(found)[:2] == ["plain", "probe"] and "weight" not in found["probe"]
    assert list(tables_of(load_recipe("digit-parity"))) == ["condition", "frontier", "erase"]
    assert list(tables_of(load_recipe("imagenet-cars-vit"))) == ["probe", "condition"]


def written(place, source):
    """Write data of a source into a folder; return the [data] of a recipe that names it."""
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(abs(hash(str(place))) % 2**32)
    if source == "npz":
        for name in ("a.npz", "b.npz"):
            x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
            np.savez(place / name, x_train=x, y_train=y, x_test=x, y_test=y)
        return "source = 'npz'\nprimary = 'a.npz'\nharmful = 'b.npz'\n"
    if source == "images":
        for name in ("a", "b"):
            for part in ("train", "test"):
                for index in range(8):
                    path = place / name / part / f"class{index % 2}" / f"{index}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    pixels = rng.integers(0, 255, (8, 8, 3), np.uint8)
                    Image.fromarray(pixels).save(path)
        return "source = 'images'\nprimary = 'a'\nharmful = 'b'\nsize = 8\nmemory = true\n"
    for name in ("a", "b"):
        for part in ("train", "test"):
            rows = [f"{name} {part} {i} {rng.integers(10**9)},{'xy'[i % 2]}" for i in range(12)]
            (place / f"{name}_{part}.csv").write_text("\n".join(["text,label", *rows]))
    tables = [f"{{file = '{n}_train.csv', test = '{n}_test.csv'}}" for n in ("a", "b")]
    return f"source = 'text'\ntokenizer = 'none'\nprimary = {tables[0]}\nharmful = {tables[1]}\n"


@pytest.mark.parametrize("source", ["npz", "images", "text"])
def test_paths_of_a_recipe_mean_the_same_for_every_source(source, tmp_path, monkeypatch):
    text = "[data]\n" + written(tmp_path / "recipes", source)
    for place in ("recipes/own", "env", "mine"):
        written(tmp_path / place, source)
    monkeypatch.setenv("IMMUNIS_DATA", str(tmp_path / "env"))
    monkeypatch.chdir(tmp_path)
    seen = []

    def read(folder=None, **_):  # stands for the source
        seen.append(None if folder is None else Path(folder).resolve())

    read.__signature__ = inspect.signature(SOURCES[source])
    model = "[model]\ninit = 'identity'\n" if source == "text" else ""

    def found(recipe, folder=None):
        monkeypatch.setitem(SOURCES, source, read)
        recipe.tasks(folder)
        return seen[-1]

    recipe = load_recipe(write(tmp_path / "recipes", text + model))
    at_own = load_recipe(
        write(tmp_path / "recipes", text.replace("\n", "\nfolder = 'own'\n", 1) + model)
    )
    far = tmp_path / "elsewhere"
    far.mkdir()
    away = load_recipe(write(far, text + model))
    assert found(recipe) == tmp_path / "recipes"
    assert found(at_own) == tmp_path / "recipes" / "own"
    assert found(away) is None  # $IMMUNIS_DATA, then ~/.cache/immunis
    assert {found(each, "mine") for each in (recipe, at_own, away)} == {tmp_path / "mine"}
