import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from immunis import InputError, SettingsError, Task
from immunis.recipes import bundled, load_recipe
from immunis.recipes.pipeline import tables_of


def write(folder, text):
    path = folder / "r.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_recipe_is_valid(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.method["name"]


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
        ("[data]\nsource = 'digits'\n[model]\ninit = 'random'\nweights = 'x'", "takes one of"),
        ("[data]\nsource = 'digits'\n[model]\nnetwork = [0]", "at least 1"),
        ("[data]\nsource = 'digits'\n[model]\nnetwork = 'mlp'", "network='mlp'"),
        ("[data]\nsource = 'digits'\n[audit]\nattacks = 'quik'", "did you mean 'quick'"),
        ("[data]\nsource = 'digits'\n[audit]\nattacks = ['rigde']", "did you mean 'ridge'"),
        ("[data]\nsource = 'digits'\n[audit.space]\nrte = [1]", "did you mean 'rate'"),
        ("[data]\nsource = 'digits'\n[audit]\nseeds = 0", "expected at least 1"),
        ("[data]\nsource = 'digits'\n[audit]\nseed = 1", "did you mean 'seeds'"),
        ("[data]\nsource = 'digits'\n[[audit.methods]]\nname = 'erse'", "did you mean 'erase'"),
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
    defender, attacker = (set(t.train.row_hashes()) for t in (tasks.harmful, tasks.attacker))
    assert len(defender) == len(attacker) == 20
    assert not defender & attacker
    arrays(tmp_path, "own.npz", n=10)
    tasks = load_recipe(write(tmp_path, NPZ + "attacker = 'own.npz'\n")).tasks()
    assert len(list(tasks.attacker.train.row_hashes())) == 10


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
    assert list(found)[-2:] == ["probe-deep", "probe-recall"] and found["probe-recall"]["near"]
    assert list(tables_of(load_recipe("digit-parity"))) == ["condition", "frontier", "erase"]
    assert list(tables_of(load_recipe("imagenet-cars-vit"))) == ["condition"]
