"""Table 3 and figure 4 on small networks and images: what runs, what is kept, what is refused."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.images import write_cars, write_folders, write_parquet
from immunis import InputError, NumericalError, SettingsError
from immunis.core.records import Record
from immunis.models.weights import load_weights
from immunis.paper import deep, released_network, write
from immunis.paper.deep import STAND_IN, is_comparable, is_stand_in, verdict
from immunis.paper.deep_network import OURS, RELEASED, Experiment, Settings, paper_row
from immunis.paper.deep_tables import accuracy
from immunis.paper.published import UNTESTED, printed
from immunis.paper.tables import tables_of
from immunis.recipes import bundled, check_recipe, load_recipe
from immunis.recipes import recipe as recipes
from immunis.recipes.pipeline import Pipeline
from immunis.report.figures import figures_of
from immunis.training.settings import training_of

PAPER = sorted(name for name in bundled() if name.startswith("imagenet-"))
SMALL = Settings(seeds=2, groups=2, group=6, epochs=2, steps=2)
SHORT = {"steps": 2, "batch": 8, "harmful_batch": 8, "evaluate": 1}
RECIPE = {
    "name": "small",
    "data": {"source": "images", "primary": "own", "harmful": "harm", "size": 16, "memory": True},
    "model": {"timm": "resnet18"},
    "pretrain": {**SHORT, "layers": ["*"], "batchnorm": "update"},
    "training": SHORT,
    "method": {"name": "probe", "label": "probe"},
    "audit": {"methods": [{"name": "condition"}]},
}
TABLE_3 = """
cars-resnet18 r_ill 1.878 0.034 1.786 0.025 1.057 0.026 63.84 0.292
cars-resnet18 imma 0.866 0.002 0.889 0.001 0.974 0.002 63.57 0.234
cars-resnet18 opt_kappa 1.217 0.021 0.798 0.005 1.527 0.019 63.65 0.148
cars-resnet18 algorithm_1 2.386 0.442 0.699 0.062 3.467 0.358 62.36 0.173
cars-vit r_ill 13.121 0.038 4.097 0.098 3.342 0.048 82.21 0.035
cars-vit imma 1.422 0.006 2.090 0.043 0.702 0.007 81.89 0.010
cars-vit opt_kappa 3.598 0.510 0.171 0.033 26.369 2.814 82.51 0.085
cars-vit algorithm_1 7.945 0.247 0.323 0.086 34.517 0.886 82.79 0.200
country211-resnet18 r_ill 20.727 0.791 20.675 1.685 1.038 0.05 62.17 1.599
country211-resnet18 imma 0.791 0.005 0.814 0.006 0.972 0.007 67.03 0.146
country211-resnet18 opt_kappa 1.538 0.155 1.053 0.091 1.472 0.043 66.81 0.115
country211-resnet18 algorithm_1 3.287 0.33 0.399 0.034 8.714 0.672 65.01 0.143
country211-vit r_ill 69.291 1.198 63.519 6.62 1.122 0.097 80.73 0.129
country211-vit imma 6.242 0.203 7.599 0.717 0.845 0.048 82.47 0.036
country211-vit opt_kappa 4.589 0.079 0.300 0.106 16.498 5.183 82.79 0.023
country211-vit algorithm_1 20.894 1.425 0.700 0.082 41.341 0.967 83.17 0.075
"""  # figure by figure mean and deviation: (i), (ii), RIR, accuracy in percent
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def network(library, name, classes, *, weights=None, seed=0, **_):
    torch.manual_seed(seed)
    stage = nn.Sequential(nn.Conv2d(4, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU())
    layers = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), stage
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, classes))
    if weights is not None:
        load_weights(model, weights)
    return model.eval()


@pytest.fixture(autouse=True)
def small_networks(monkeypatch):
    """No timm is needed: every network of a recipe is a small one."""
    monkeypatch.setattr(recipes, "named_network", network)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("images")
    for split, each in (("train", 14), ("test", 4)):
        write_folders(base / "own", split, each=each)
        write_parquet(base / "harm" / f"{split}.parquet", each=2 * each)
    return base


def of_classes(primary, harmful):
    return SimpleNamespace(
        primary=SimpleNamespace(outputs=primary), harmful=SimpleNamespace(outputs=harmful)
    )


def pipeline(folder, keep=None, **changes):
    recipe = check_recipe({**RECIPE, **changes}, folder / "small.toml")
    return Pipeline(recipe, recipe.tasks(str(folder)), folder=keep)


@pytest.fixture(scope="module")
def record(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "named_network", network)
        return deep.reproduce(pipeline(folder), SMALL)


class TestPublished:
    def test_the_rows_are_those_of_table_3(self):
        said = printed("deep")
        assert "tab:imagenet" in said["table"] and "tab:exp_detail" in said["settings"]
        parts = {key: part for key, part in said.items() if isinstance(part, dict)}
        assert set(parts) == {
            f"{a}-{b}" for a in ("cars", "country211") for b in ("resnet18", "vit")
        }
        rows = [row for part in parts.values() for row in part["methods"].values()]
        assert len(rows) == 16 and all(
            set(part["methods"]) == set(deep.LABELS) for part in parts.values()
        )
        for line in TABLE_3.strip().splitlines():
            part, method, *figures = line.split()
            values = iter(map(float, figures))
            wanted = {name: [next(values), next(values)] for name in (*deep.FACTORS, "accuracy")}
            assert parts[part]["methods"][method] == wanted, line
        assert len(TABLE_3.strip().splitlines()) == 16
        assert {name: part["initial"] for name, part in parts.items()} == {
            "cars-resnet18": 68.24, "cars-vit": 81.78,
            "country211-resnet18": 68.24, "country211-vit": 81.78,
        }  # fmt: skip

    @pytest.mark.parametrize("name", PAPER)
    def test_the_recipes_of_the_paper_have_its_settings(self, name):
        recipe = load_recipe(name)
        key = name.removeprefix("imagenet-")
        assert paper_row(recipe) == key and is_comparable(recipe)
        assert not is_stand_in(recipe, of_classes(1000, 211 if "country" in name else 196))
        assert is_stand_in(recipe, of_classes(3, 196))  # whatever its folders are called
        said, training = printed("deep")[key]["released"], recipe.training_for(recipe.method)
        assert training["rate"] == said["rate"] and training["harmful_epochs"] == said["epochs"]
        for weight in ("lambda_primary", "lambda_harmful"):
            assert recipe.method[weight] == said[weight]

    @pytest.mark.parametrize("name", [deep.DEFAULT, "stand-in-cars-vit"])
    def test_the_default_is_a_stand_in(self, name):
        assert is_stand_in(load_recipe(name), of_classes(1000, 196)) and is_comparable(
            load_recipe(name)
        )

    def test_other_birds_and_networks_have_no_published_figures_beside_them(self):
        assert not is_comparable(load_recipe("efficientnet-lite0-cub"))

    @pytest.mark.parametrize("name", [*PAPER, deep.DEFAULT, "efficientnet-lite0-cars"])
    def test_every_recipe_can_be_rehearsed(self, name):
        recipe = deep.rehearsal(load_recipe(name))
        assert not recipe.data["memory"]  # few of the images are read, not all
        for table in (recipe.method, *recipe.audit["methods"]):
            assert training_of(recipe.training_for(table)).steps == 2


class TestRecord:
    def test_every_method_and_setting_has_a_row(self, record):
        rows = [(row["label"], row["training"]) for row in record.figures["rows"]]
        released = [(label, RELEASED) for label in deep.LABELS.values()]
        assert rows == [("original", ""), *released, ("condition", OURS), ("probe", OURS)]
        assert record.settings["released"] == {
            "rate": 1e-5, "lambda_primary": 5e-5, "lambda_harmful": 2e6, "steps": 2, "batch": 64,
        }  # fmt: skip

    def test_the_original_is_compared_with_itself(self, record):
        original = record.figures["rows"][0]
        for kind in ("groups", "full"):
            assert {original[kind][factor]["mean"] for factor in deep.FACTORS} == {1.0}

    def test_factors_scores_and_curves_are_over_the_seeds(self, record):
        for row in record.figures["rows"]:
            assert row["runs"] == 2 and not row["failed"]
            values = {factor: row["full"][factor]["values"] for factor in deep.FACTORS}
            for harmful, primary, ratio in zip(
                values["harmful"], values["primary"], values["rir"], strict=True
            ):
                assert ratio == harmful / primary  # of groups, it is a mean of such ratios
            factors = [row[kind][factor] for kind in ("groups", "full") for factor in deep.FACTORS]
            for spread in (*factors, row["accuracy"], row["ridge"]):
                assert len(spread["values"]) == 2
                assert spread["mean"] == pytest.approx(sum(spread["values"]) / 2)
            assert [p["epochs"] for p in row["curve"]] == sorted(p["epochs"] for p in row["curve"])
            assert row["curve"][-1]["epochs"] == pytest.approx(2)
            assert row["ranks"]["harmful"]["high"] <= 12
            harder = sum(value > 1 + 1e-4 for value in row["full"]["harmful"]["values"])
            assert row["definition"]["harmful"] == harder

    def test_a_stand_in_says_so_everywhere(self, record, tmp_path):
        verdicts = {row["verdict"] for row in record.figures["rows"] if row["training"] == RELEASED}
        assert verdicts == {STAND_IN}
        assert record.settings["stand_in"]
        for table in tables_of(record):
            assert STAND_IN in table.title
        texts = [
            path.read_text() for path in write(record, tmp_path) if path.suffix in (".md", ".csv")
        ]
        assert len(texts) == 2 and all(STAND_IN in text for text in texts)
        assert not any("replicate" in text for text in texts)

    def test_a_rehearsal_says_so(self, record):
        for table in tables_of(record):
            assert "a rehearsal of 2 steps" in table.title and "over 2 seeds" in table.title
        whole = {**record.settings, "steps": None, "seeds": 1}
        titles = [t.title for t in tables_of(dataclasses.replace(record, settings=whole))]
        assert all("rehearsal" not in title and title.endswith("one seed") for title in titles)

    def test_nothing_published_stands_beside_what_the_paper_has_not(self, record):
        assert record.figures["initial"] is None  # its harmful task is not the paper's
        table = tables_of(record)[0]
        said = [place for place, head in enumerate(table.columns) if "published" in head]
        assert len(said) == 4 and {row[place] for row in table.rows for place in said} == {"–"}

    def test_nothing_published_stands_beside_a_rehearsal(self, folder, monkeypatch):
        monkeypatch.setattr(deep, "is_comparable", lambda recipe: True)
        own = pipeline(folder)
        rows, model = deep.rows_of(own.recipe), own.original()
        for steps in (2, None):
            how = dataclasses.replace(SMALL, steps=steps)
            experiment = Experiment.of(own, how, model)
            found = deep.figures(experiment, rows, [{"failed": "θ ran away"}] * 2 * len(rows))
            shown = {row["published"] is not None for row in found["rows"]}
            assert shown == ({False} if steps else {False, True})
            assert (found["initial"] is None) == bool(steps)

    def test_the_epochs_of_probing_are_plain_numbers(self, record):
        (axis,) = accuracy(record, "figure").axes
        assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2"]
        assert not axis.get_xticks(minor=True).size

    def test_it_is_written_and_read_back(self, record, tmp_path):
        names = {path.name for path in write(record, tmp_path)}
        assert {"record.json", "tables.md", "tables.tex", "figures.csv", "accuracy.png"} <= names
        again = Record.load(tmp_path / "record.json")
        assert again.digest() == record.digest()
        assert set(figures_of(again)) == {"accuracy"}
        values = json.loads(json.dumps(record.to_dict()))
        del values["figures"]["rows"][0]["verdict"]
        with pytest.raises(InputError, match=r"figures.rows.0.verdict is missing"):
            Record(**values).checked()


def test_a_killed_run_goes_on_where_it_stopped(folder, tmp_path, monkeypatch, record):
    calls, train = [], released_network.train

    def killed(*arguments, **options):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(arguments)
        return train(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(released_network, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            deep.reproduce(pipeline(folder, tmp_path), SMALL)
    shares = []
    again = pipeline(folder, tmp_path)
    again = dataclasses.replace(again, progress=lambda what, share: shares.append(share))
    calls.clear()
    monkeypatch.setattr(
        released_network, "train", lambda *a, **k: calls.append(a) or train(*a, **k)
    )
    found = deep.reproduce(again, SMALL)
    assert len(calls) == 8 - 3
    assert shares[0] == 0 and shares == sorted(shares) and shares[-1] == 1

    def timeless(row):
        return {key: value for key, value in row.items() if key != "seconds"}

    rows = [[timeless(row) for row in r.to_dict()["figures"]["rows"]] for r in (found, record)]
    assert rows[0] == rows[1]


def test_a_run_that_diverges_is_told_and_does_not_end_the_others(folder, monkeypatch):
    def train(cut, streams, method, *_):
        raise NumericalError(f"{method} is not finite.")

    monkeypatch.setattr(released_network, "train", train)
    found = deep.reproduce(pipeline(folder), SMALL)
    rows = {row["label"]: row for row in found.figures["rows"]}
    assert rows["IMMA"]["failed"] == ["imma is not finite."] * 2 and "groups" not in rows["IMMA"]
    assert rows["IMMA"]["verdict"] == STAND_IN and "groups" in rows["probe"]
    assert "IMMA (2 of 2 runs diverged)" in tables_of(found.checked())[0].markdown()


@pytest.mark.parametrize(
    ("size", "wrong"), [(math.nan, "not finite"), (1e30, "not finite"), (0.0, "all zero")]
)
def test_a_network_that_ends_ruined_is_told_and_does_not_end_the_others(
    folder, monkeypatch, size, wrong
):
    def train(cut, *_):
        ruined = cut.copy()
        with torch.no_grad():
            for parameter in ruined.model.parameters():
                parameter *= size
        return ruined

    monkeypatch.setattr(released_network, "train", train)
    found = deep.reproduce(pipeline(folder), dataclasses.replace(SMALL, seeds=1))
    rows = {row["label"]: row for row in found.figures["rows"]}
    assert wrong in rows["IMMA"]["failed"][0] and "groups" in rows["probe"]


def test_the_verdict_answers_two_questions_on_the_papers_data():
    def figures(harmful, primary, rir):
        means = {"harmful": harmful, "primary": primary, "rir": rir}
        return {key: {"mean": value, "values": [value, rir, 0.5]} for key, value in means.items()}

    said = {
        "harmful": [2.0, 0.1],
        "primary": [0.5, 0.1],
        "rir": [4.0, 0.1],
        "accuracy": [62.0, 0.1],
    }
    found = {"groups": figures(3.0, 0.6, 5.0), "full": figures(100.0, 2.0, 50.0)}
    found["accuracy"] = {"mean": 0.63}
    assert (
        verdict(said, found, True, False) == "released κ: replicates; eq. 1: holds in 2 of 3 seeds"
    )
    ruined = {**found, "accuracy": {"mean": 0.1}}
    assert verdict(said, ruined, True, False).startswith("released κ: does not replicate")
    assert verdict(said, found, False, False) == UNTESTED
    unknown = {**found, "full": figures(1.0, 2.0, math.nan)}
    below = {**said, "rir": [0.9, 0.1]}
    assert verdict(below, unknown, True, False).endswith("holds in 1 of 3 seeds")  # 0.5 alone
    assert verdict(said, found, True, True) == STAND_IN
    assert "every run failed" in verdict(said, {}, True, False)


class TestMistakes:
    def test_a_recipe_without_a_network_on_images_is_refused(self):
        with pytest.raises(SettingsError, match="a network of timm, torchvision, transformers on"):
            paper_row(load_recipe("digits"))

    def test_weights_of_another_architecture_are_refused(self, folder):
        pytest.importorskip("timm", reason="needs immunis[vision]")
        torch.save({"stem.weight": torch.zeros(3)}, folder / "other.pt")
        model = {"timm": "resnet18", "checkpoint": "other.pt"}
        with pytest.raises(InputError, match="belong to another model"):
            deep.reproduce(pipeline(folder, model=model), SMALL)

    def test_classes_that_the_pretrained_head_does_not_know_are_refused(self, folder):
        pytest.importorskip("timm", reason="needs immunis[vision]")
        model = {"timm": "resnet18", "pretrained": True}
        with pytest.raises(InputError, match="own holds 3 classes; .* 1000"):
            deep.reproduce(pipeline(folder, model=model), SMALL)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--recipe", "imagenet-cars-resnet18"], "imagenet"),
            (["--recipe", "digits"], "on images"),
            (["--recipe", "no-such"], "unknown recipe 'no-such'"),
            (["--pairs", "3-7"], "--pairs is for mnist, not for deep"),
            (["--fetch"], "--fetch is for house-prices, not for deep"),
            (["--workers", "2"], "--workers is not for deep"),
            (["--device", "warp"], "warp"),
        ],
    )
    def test_on_the_command_line_leave_nothing_behind(self, run, tmp_path, arguments, says):
        done = run("reproduce", "deep", "--data", "nowhere", *arguments)
        assert done.returncode == 2
        assert says in done.stderr.replace("\n", "")
        assert not list(tmp_path.iterdir())
        assert "--recipe is for deep" in run("reproduce", "mnist", "--recipe", "digits").stderr

    def test_layouts_that_are_none_and_classes_that_do_not_match(self, run, tmp_path):
        data = tmp_path / "data"
        (data / "imagenet" / "train").mkdir(parents=True)
        write_cars(data / "cars", each=40)
        command = ("reproduce", "deep", "--recipe", "imagenet-cars-resnet18", "--data", data)
        done = run(*command)
        assert done.returncode == 2 and "holds no images in class folders" in done.stderr
        write_folders(data / "imagenet", "train")
        write_folders(data / "imagenet", "val", classes=4)
        done = run(*command)
        assert done.returncode == 2 and "'class3' is not among the training classes" in done.stderr


def test_the_command_rehearses_estimates_and_resumes(run, folder, tmp_path):
    text = bundled()[deep.DEFAULT].read_text()
    for old, new in (
        ("tiny_imagenet_100", "own"),
        ("stanford_cars_112", "harm"),
        ('layers = ["layer3", "layer4"]', "layers = []"),
        ('layers = ["layer4"]', "layers = []"),
    ):
        text = text.replace(old, new)
    (tmp_path / "mine.toml").write_text(text)
    command = ("reproduce", "deep", "--recipe", "mine.toml", "--data", folder, "--quick")
    told = run(*command, "--dry-run")
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1].startswith("about ")
    assert "Alg. 1" in told.stdout and "pre-training" in told.stdout and "measuring" in told.stdout
    done = run(*command, "-o", "out")
    assert done.returncode == 0, done.stderr
    assert STAND_IN in done.stdout
    assert done.stdout.splitlines()[-1].startswith("written: out/record.json")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/networks/runs").iterdir()}
    assert len(kept) == 7
    again = json.loads(run(*command, "-o", "out", "--json").stdout)
    assert again["settings"]["seeds"] == 1 and math.isnan(
        float(again["figures"]["rows"][1]["ridge"]["std"])
    )
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    drawn = run("figures", "out/record.json", "-o", "drawn")
    assert drawn.returncode == 0 and (tmp_path / "drawn/out-accuracy.png").exists(), drawn.stderr
