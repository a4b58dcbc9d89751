"""Networks through recipes, the command line, export and local weights."""

import dataclasses
import io
import json
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file
from torch import nn

from helpers.networks import small_net, tasks
from immunis import InputError, Record, SettingsError, immunize
from immunis.cli import main as cli
from immunis.core.hashing import state_digest
from immunis.models.find_cut import cut
from immunis.models.weights import config, load_weights
from immunis.models.zoo import named_network
from immunis.recipes import check_recipe, load_recipe, pipeline
from immunis.recipes.defences import tried
from immunis.recipes.pipeline import Pipeline
from immunis.report import text
from immunis.report.audit_tables import models_table
from immunis.report.card import render
from immunis.report.export import export, weights
from immunis.report.model_card import model_card
from immunis.report.runs import record_files

TOML = """
name = "small"
[data]
source = "npz"
primary = "p.npz"
harmful = "h.npz"
[model]
network = [24, 12]
[method]
name = "probe"
weight = 10.0
[training]
layers = ["*"]
steps = 6
batch = 32
harmful_batch = 64
evaluate = 2
[audit]
attacks = ["ridge"]
seeds = 2
variants = 2
budget = 2
"""


@pytest.fixture
def recipe(tmp_path):
    rng = np.random.default_rng(0)
    for name, classes in (("p", 3), ("h", 2)):
        y = rng.permutation(np.arange(160) % classes)
        x = rng.normal(size=(160, 10)) + rng.normal(size=(classes, 10))[y]
        np.savez(
            tmp_path / f"{name}.npz", x_train=x[:120], y_train=y[:120], x_test=x[120:],
            y_test=y[120:],
        )  # fmt: skip
    path = tmp_path / "small.toml"
    path.write_text(TOML)
    return path


def test_immunize_writes_a_release_folder_and_resumes(run, recipe, tmp_path):
    out = tmp_path / "out"
    done = run("immunize", recipe, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "against the given model" in done.stdout
    names = {p.name for p in out.iterdir()}
    assert {"model.safetensors", "config.json", "README.md", "record.json", "card.html"} <= names
    assert (out / "training" / "checkpoint.pt").exists()
    first = load_file(out / "model.safetensors")
    again = run("immunize", recipe, "-o", out, "--resume")
    assert again.returncode == 0, again.stderr
    second = load_file(out / "model.safetensors")
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_defences_are_made_from_every_original_in_turns_and_compared_with_plain(recipe):
    recipe.write_text(
        TOML.replace("variants = 2", "variants = 3\noriginals = 2").replace(
            "seeds = 2", "seeds = 1"
        )
        + '[[audit.methods]]\nname = "probe"\nlabel = "plain"\nweight = 0.0\ntried = 3\n'
        + '[[audit.methods]]\nname = "probe"\nweight = 10.0\n'
    )
    chosen = load_recipe(recipe)
    made = Pipeline(chosen, chosen.tasks())
    originals = [made.original(turn) for turn in range(chosen.originals)]
    assert not torch.equal(*(next(model.parameters()) for model in originals))
    variants, _ = made.variants(chosen.method, originals)
    assert [each.original for each in variants] == [0, 1, 0]
    record = made.audit().record
    figures = record.figures
    assert record.settings["plain"] == "plain"
    assert figures["factors"]["models"]["plain"]["variants"] == 3
    assert (
        figures["factors"]["models"]["original"]["variants"] == figures["factors"]["originals"] == 2
    )
    assert [row.get("tried") for row in figures["models"].values()] == [None, 3, 1]
    assert set(figures["models"]["probe"]["primary_change"]) == {"original", "plain"}
    table = models_table(record)
    assert table.columns[-3:] == ["settings tried", "steps", "harmful rows a step"]
    assert [row[-3:] for row in table.rows] == [
        ["–"] * 3, ["3", "6", "64"], ["1 (not tuned)", "6", "64"]
    ]  # fmt: skip


def test_a_final_audit_is_counted_and_its_card_says_so(run, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("IMMUNIS_LEDGER", str(tmp_path / "ledger.jsonl"))
    refused = run("audit", recipe, "-o", tmp_path / "out", "--final")
    assert refused.returncode == 2 and "a final audit needs 50 rows" in " ".join(
        refused.stderr.split()
    )
    rng = np.random.default_rng(0)
    arrays = dict(np.load(recipe.parent / "h.npz"))
    arrays |= {"x_test": rng.normal(size=(300, 10)), "y_test": np.arange(300) % 2}
    np.savez(recipe.parent / "h.npz", **arrays)
    assert run("audit", recipe, "-o", tmp_path / "out").returncode == 0
    development = (tmp_path / "out" / "record.json").read_bytes()
    for _ in range(2):  # the second continues the first
        done = run("audit", recipe, "-o", tmp_path / "out", "--final", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["figures"]["final"] == {"audits": 1}
    assert (tmp_path / "out" / "record.json").read_bytes() == development
    names = [path.name for path in record_files(tmp_path / "out")]
    assert names == ["record-final.json", "record.json"]
    card = (tmp_path / "out" / "card-final.html").read_text()
    assert "the final half of the test rows" in card
    assert "final audits of this benchmark so far: 1" in card
    run("audit", recipe, "-o", tmp_path / "out", "--final", "--dry-run")
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 1


def test_audit_defends_once_for_each_variant(run, recipe, tmp_path):
    done = run("audit", recipe, "-o", tmp_path / "out", "--methods", "probe")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert len(record["figures"]["models"]["probe"]["variants"]) == 2
    told = record["figures"]["training"]["probe"]
    assert [[row["step"] for row in seed["history"]] for seed in told] == [[0, 3, 6]] * 2
    assert (tmp_path / "out" / "card.html").exists()
    again = run("card", tmp_path / "out" / "record.json", "-o", tmp_path / "again.html")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.html").read_text() == (tmp_path / "out" / "card.html").read_text()
    assert run("card", tmp_path / "nothing.json").returncode == 2
    wrong = run("audit", recipe, "-o", tmp_path / "out", "--methods", "prob")
    assert wrong.returncode == 2
    assert "did you mean 'probe'" in wrong.stderr.replace("\n", " ")


def test_a_recipe_states_the_threshold_and_the_tolerance(recipe):
    text = TOML.replace("seeds = 2", "seeds = 1\nthreshold = 0.7")
    recipe.write_text(text.replace("steps = 6", "steps = 6\ntolerance = 0.02"))
    chosen = load_recipe(recipe)
    settings = Pipeline(chosen, chosen.tasks()).audit(methods=[]).record.settings
    assert settings["threshold"] == 0.7 and settings["tolerance"] == 0.02


def test_a_record_repeats_its_run(run, recipe, tmp_path):
    asked = ["--attacks", "knn,ridge", "--methods", "probe", "--precision", "bf16-mixed"]
    done = run("audit", recipe, *asked, "-o", recipe.parent / "one", "--json")
    first = json.loads(done.stdout)
    assert first["settings"]["arguments"] == asked
    path = recipe.parent / "record.json"  # where its data is
    path.write_bytes((recipe.parent / "one" / "record.json").read_bytes())
    command = text.command(Record.load(path))
    assert command.startswith("immunis audit record.json --attacks knn,ridge --methods probe")
    again = run(*command.split()[1:], "-o", "two", "--json")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert second["settings"] == first["settings"]
    scores = [
        {n: row["score"] for of in f["figures"]["attacks"].values() for n, row in of.items()}
        for f in (first, second)
    ]
    assert scores[0] == scores[1]
    shown = render(Record.load(path))
    assert command in shown and len(first["figures"]["models"]["probe"]["variants"]) == 2
    for row in first["figures"]["models"]["probe"]["variants"]:
        assert row["weights"] in shown.split("Weights (hash)")[1].split("</dd>")[0]
    Record.load(path).with_settings(recipe={}).save(path)
    refused = run("audit", path)
    assert refused.returncode == 2 and "holds no recipe" in refused.stderr


def test_a_record_of_a_defence_has_the_hash_of_its_weights(released):
    found = released.record.figures["weights"]
    assert found == state_digest(released.model) and found in render(released.record)


def test_hardware_is_checked_before_anything_runs(run, recipe, tmp_path):
    done = run("immunize", recipe, "-o", tmp_path / "out", "--strategy", "horovod")
    assert done.returncode == 2
    assert "strategy" in done.stderr
    assert not (tmp_path / "out").exists()


def test_kept_models_are_not_trained_again(recipe, tmp_path):
    chosen = load_recipe(recipe)
    data = chosen.tasks()
    model = Pipeline(chosen, data).original()
    first, told = Pipeline(chosen, data, folder=tmp_path / "models").variants(
        chosen.method, [model]
    )
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "models").iterdir()}
    second, again = Pipeline(chosen, data, folder=tmp_path / "models").variants(
        chosen.method, [model]
    )
    assert told == again and [row["step"] for row in told[1]["history"]][-1] == told[1]["steps"]
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "models").iterdir()}
    for file in (tmp_path / "models").glob("*.json"):
        file.unlink()
    _, lost = Pipeline(chosen, data, folder=tmp_path / "models").variants(chosen.method, [model])
    assert lost == [None, None]
    for a, b in zip(first, second, strict=True):
        assert all(
            torch.equal(x, y)
            for x, y in zip(
                a.model.state_dict().values(), b.model.state_dict().values(), strict=True
            )
        )
    told = {**chosen.method, "tried": 7}  # says nothing of the network
    Pipeline(chosen, data, folder=tmp_path / "models").variants(told, [model])
    assert stamps.keys() >= set((tmp_path / "models").iterdir())


def test_a_weight_is_searched_once_and_the_other_variants_take_it(recipe, tmp_path):
    chosen = load_recipe(recipe)
    chosen = dataclasses.replace(chosen, method={"name": "probe"}, training={"steps": 6})
    data = chosen.tasks()
    made = Pipeline(chosen, data, folder=tmp_path)
    model = made.original()
    _, told = made.variants(chosen.method, [model])
    assert "weights_tried" in told[0] and "weights_tried" not in told[1]
    count = len(told[0]["weights_tried"])
    assert tried({}, told) == count >= 2
    assert tried({"tried": 3}, told) == count + 2
    assert tried({}, [None]) == 1
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    weights = [
        json.loads(path.read_text())["settings"]["weight"] for path in tmp_path.glob("*.json")
    ]
    assert len(weights) == 2 and weights[0] == weights[1]
    made.variants(chosen.method, [model])
    assert kept == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"rat": 1}}, "did you mean 'rate'"),
        ({"training": {"steps": 1}, "model": {"init": "identity"}}, "training needs a network"),
        ({"model": {"network": [4], "pretrained": True}}, "needs one of timm"),
        ({"model": {"timm": "resnet18", "in_order": True}}, "how to read a checkpoint"),
        ({"model": {"timm": "resnet18", "imagenet_head": True}}, "needs pretrained weights"),
        ({"model": {"timm": "resnet18", "network": [4]}}, "needs exactly one of"),
        ({"method": {"name": "erase"}, "training": {"steps": 1}}, "trains no network"),
        ({"method": {"name": "probe", "training": 3}}, "must be a table"),
        ({"pretrain": {"epochs": -1.0}}, "epochs=-1.0"),
        ({"audit": {"space": {"rate": 3}}}, "must be a list"),
        ({"audit": {"threshold": 70.0}}, r"\[audit\] threshold=70.0: expected"),
        ({"audit": {"methods": [{"name": "probe", "label": 3}]}}, "label"),
    ],
)
def test_recipes_are_checked_before_anything_is_loaded(change, message, tmp_path):
    values = {
        "data": {"source": "npz", "primary": "p.npz", "harmful": "h.npz"},
        "model": {"network": [8, 4]},
        **change,
    }
    with pytest.raises(SettingsError, match=message):
        check_recipe(values, tmp_path / "r.toml")


def test_an_unknown_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SettingsError, match=r"pip install 'immunis\[vision\]'"):
        named_network("timm", "resnet18", 4)


@pytest.fixture(scope="module")
def released():
    training = {"steps": 2, "batch": 32, "harmful_batch": 64, "evaluate": 1}
    return immunize(small_net(), *tasks(), "probe", training=training, weight=10.0)


def test_weights_carry_what_made_them(released, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(weights(released.model, released.record))
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["method"] == "probe"
    assert metadata["record"] == released.record.digest()
    fresh = small_net(seed=4)
    load_weights(fresh, path)
    x = tasks()[0].test.first(3)
    assert torch.equal(fresh(x), released.model(x))


class Odd(nn.Module):
    """A state of more than tensors, or of tensors within others."""

    def __init__(self, extra):
        super().__init__()
        self.layer, self.extra = nn.Linear(192, 4), extra
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("part", self.whole[2:])

    def forward(self, x):
        return self.layer(x.flatten(1))

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        pass


def test_a_state_of_more_than_tensors_is_refused_and_overlapping_ones_are_written():
    with pytest.raises(InputError, match=r"holds a dict \(_extra_state\)"):
        weights(Odd({"seen": [3, None]}))
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), Odd({"seen": [3, None]}))
    model[3].layer = nn.Linear(8, 4)
    training = {"steps": 1, "batch": 16, "harmful_batch": 40, "evaluate": 1}
    assert immunize(model, *tasks(), "probe", head="3.layer", training=training).model is not model
    model[3].extra = io.BytesIO(b"x")
    with pytest.raises(InputError, match=r"state holds a BytesIO \(3\._extra_state\)"):
        immunize(model, *tasks(), "probe", head="3.layer", training=training)
    assert b"part" in weights(Odd(torch.ones(1)))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), "has no values"),
        (nn.Linear(192, 4, device="meta"), "has no values"),
        (nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(192, 4))), "cannot be copied"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_models_that_cannot_be_trained_say_why(model, told):
    with pytest.raises(InputError, match=told):
        immunize(model, *tasks(), "probe", training={"steps": 1})


def test_a_recipe_may_name_the_head(recipe, tmp_path):
    path = recipe.parent / "named.toml"
    path.write_text(TOML.replace("network = [24, 12]", 'timm = "resnet10t"\nhead = "fc"'))
    assert load_recipe(path).head == "fc"
    assert load_recipe(recipe).head is None


def test_shared_tensors_are_written_out():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    written = load(weights(model))
    assert written["1.weight"].equal(written["0.weight"]) and len(written) == 4


def test_the_model_card_escapes_what_a_user_supplies(released, tmp_path):
    import dataclasses

    record = dataclasses.replace(released.record, name="<script>x</script>\n---\nevil: yes")
    text = model_card(record)
    assert "<script>" not in text
    assert "\nevil: yes" not in text
    assert "<script>" not in render(record).split("</head>")[1].split('type="application/json"')[0]
    export(released.model, released.record, tmp_path)
    found = config(released.model)
    assert found["architectures"] == ["Sequential"] and found["library"] == "torch"
    assert "layers" in found


@pytest.mark.parametrize("content", [b"", b"not weights", b"\x80\x04cos\nsystem\n"])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_weights_that_cannot_be_read(content, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        load_weights(small_net(), tmp_path / name)


def test_changed_data_makes_new_defences(recipe, tmp_path):
    chosen = load_recipe(recipe)
    data = chosen.tasks()
    model = Pipeline(chosen, data).original()
    Pipeline(chosen, data, folder=tmp_path / "models").variants(chosen.method, [model])
    count = len(list((tmp_path / "models").glob("*.safetensors")))
    file = recipe.parent / "h.npz"
    arrays = dict(np.load(file))
    arrays["y_train"] = arrays["y_train"][::-1]
    np.savez(file, **arrays)
    Pipeline(chosen, chosen.tasks(), folder=tmp_path / "models").variants(chosen.method, [model])
    assert len(list((tmp_path / "models").glob("*.safetensors"))) == 2 * count


@pytest.mark.parametrize(
    ("line", "says"),
    [('layers = ["9"]', "unknown layer '9'"), ("held_out = 1e-4", "held_out=0.0001")],
)
def test_what_the_network_does_not_have_is_told_before_pre_training(
    recipe, tmp_path, monkeypatch, capsys, line, says
):
    text = TOML.replace("[method]", '[pretrain]\nlayers = ["*"]\nsteps = 8\n[method]')
    wrong = ('layers = ["*"]\nsteps = 6', f"{line}\nsteps = 6")
    recipe.write_text(text.replace(*wrong))
    monkeypatch.setattr(pipeline, "fit", lambda *_, **__: pytest.fail("pre-trained first"))
    chosen = load_recipe(recipe)
    described = Pipeline(chosen, chosen.tasks(), folder=tmp_path / "m")
    with pytest.raises(SettingsError, match=says):
        described.audit()
    monkeypatch.setattr(
        sys, "argv", ["immunis", "immunize", str(recipe), "-o", str(tmp_path / "o")]
    )
    with pytest.raises(SystemExit):
        cli.main()
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_network_that_no_map_folds_into_is_told_before_pre_training(recipe, monkeypatch):
    start, end = TOML.index("[method]"), TOML.index("[audit]")
    pretrained = '[pretrain]\nlayers = ["*"]\nsteps = 8\n[method]\nname = "erase"\n'
    recipe.write_text(TOML[:start] + pretrained + TOML[end:])
    chosen = load_recipe(recipe)
    Pipeline(chosen, chosen.tasks()).rehearse([chosen.method])
    monkeypatch.setattr(
        "immunis.recipes.recipe.cut",
        lambda *given: dataclasses.replace(cut(*given), last_linear=None),
    )
    with pytest.raises(InputError, match="not the output of a linear layer"):
        Pipeline(chosen, chosen.tasks()).rehearse([chosen.method])


def test_wandb_is_asked_for_before_anything_is_trained(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(Pipeline, "original", lambda *_, **__: pytest.fail("trained first"))
    command = ["immunize", str(recipe), "--wandb", "p", "--output", str(tmp_path / "o")]
    monkeypatch.setattr(sys, "argv", ["immunis", *command])
    with pytest.raises(SystemExit):
        cli.main()
    assert "immunis[track]" in "".join(capsys.readouterr().err.split())


def test_pretraining_is_resumed(recipe, tmp_path, monkeypatch):
    recipe.write_text(
        TOML.replace("[method]", '[pretrain]\nlayers = ["*"]\nsteps = 8\nevaluate = 4\n[method]')
    )
    chosen = load_recipe(recipe)
    data = chosen.tasks()
    whole = Pipeline(chosen, data).original()

    class KilledError(Exception):
        pass

    def kill(what, share):
        if share > 0.6:
            raise KilledError

    with pytest.raises(KilledError):
        Pipeline(chosen, data, folder=tmp_path / "m", progress=kill).original()
    seen = []
    again = Pipeline(
        chosen, data, folder=tmp_path / "m", progress=lambda w, s: seen.append(s)
    ).original()
    assert min(seen) > 0.4
    for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
