"""Encoders of text: masks at every depth, in every attack and method; folders in and out."""

import copy
import hashlib
import json

import pytest
import torch
import transformers
from sklearn.linear_model import LogisticRegression
from torch import nn

from helpers.sentences import (
    WORDS,
    bert,
    padded,
    sentence_folder,
    sentences,
    text_task,
    tokenizer_of,
)
from immunis import InputError, SettingsError, Task, audit, immunize
from immunis.attacks import ATTACKS, PROBES
from immunis.attacks.arrays import Samples
from immunis.attacks.probes.attention_pool import AttentionPool, Positions
from immunis.audits.describe import Reader
from immunis.data.feed import most_tokens, run_model
from immunis.models.find_cut import cut
from immunis.models.joined import Joined
from immunis.models.linear import DECAY, fit_logistic_head
from immunis.models.text import TextEncoder, text_encoder
from immunis.models.zoo import named_network
from immunis.recipes import load_recipe
from immunis.recipes.pipeline import Pipeline
from immunis.report.audit_tables import transfer_table
from immunis.report.export import export
from immunis.report.tables import immunize_table
from immunis.theory.retrieval import retrieval
from immunis.training.settings import Training

TASK = text_task()
X = TASK.train.first(20)
SHORT = Training(layers=["*"], steps=2, batch=16, harmful_batch=40, evaluate=1)
pytestmark = pytest.mark.filterwarnings("ignore")


def decoder(kind="gpt2", classes=None):
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=60, n_embd=16, n_layer=3, n_head=2, n_positions=32, num_labels=classes or 2,
            pad_token_id=0,
        )  # fmt: skip
        made = transformers.GPT2ForSequenceClassification if classes else transformers.GPT2Model
        return made(config).eval()
    config = transformers.LlamaConfig(
        vocab_size=60, intermediate_size=24, hidden_size=16, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaModel(config).eval()


def other(name):
    """Other architectures, each as small as it goes."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 60,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    config = {
        "mpnet": lambda: transformers.MPNetConfig(**sizes, max_position_embeddings=40),
        "roberta": lambda: transformers.RobertaConfig(**sizes, max_position_embeddings=40),
        "deberta": lambda: transformers.DebertaV2Config(**sizes),
        "modernbert": lambda: transformers.ModernBertConfig(
            **sizes, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3
        ),
    }[name]()
    return transformers.AutoModel.from_config(config).eval()


MODELS = {
    "classifier": lambda: bert(3),
    "bare": bert,
    "beside": lambda: Joined(bert(), nn.Linear(16, 3)).eval(),
    "mean": lambda: TextEncoder(bert(), 3, normalise=True).eval(),
    "first": lambda: TextEncoder(bert(), 3, "first").eval(),
    "decoder, classifier": lambda: decoder(classes=3),
    "decoder, last": lambda: TextEncoder(decoder(), 3, "last").eval(),
    "decoder, mean": lambda: TextEncoder(decoder("llama"), 3, "mean").eval(),
    **{name: lambda name=name: TextEncoder(other(name), 3).eval()
       for name in ("mpnet", "roberta", "deberta", "modernbert")},
}  # fmt: skip
HEADS = {"decoder, classifier": "score"}


def cut_of(name):
    return cut(MODELS[name](), X[:2], 3, HEADS.get(name))


@pytest.mark.parametrize("name", MODELS)
def test_padding_and_company_change_no_feature_at_any_depth(name):
    whole = cut_of(name)
    assert len(whole.stages) >= 3
    for layer in ("", *whole.stages):
        with torch.no_grad():
            found = whole.features(X, layer)
            longer = whole.features(padded(X, 20), layer)
            alone = torch.cat([whole.features(row[None], layer) for row in X])
        assert found.shape == (20, found.shape[1])
        size = float(found.abs().max())
        assert float((longer - found).abs().max()) <= 1e-6 * max(1.0, size), layer
        assert float((alone - found).abs().max()) <= 2e-6 * max(1.0, size), layer


@pytest.mark.parametrize("name", ["classifier", "mean", "decoder, last"])
def test_maps_of_a_stage_hold_the_real_tokens_and_zeros(name):
    whole = cut_of(name)
    assert set(whole.stages) >= set(whole.token_stages) > set()
    for stage in whole.token_stages:
        with torch.no_grad():
            found, longer = (whole.features(x, f"{stage}:maps") for x in (X, padded(X, 20)))
            alone = torch.cat([whole.features(row[None], f"{stage}:maps") for row in X])
            first = whole.features(X, f"{stage}:first")
        tokens = longer.unflatten(1, (20, -1))
        torch.testing.assert_close(tokens[:, :12].flatten(1), found, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(alone, found, atol=2e-6, rtol=1e-5)
        assert not tokens[padded(X, 20)[:, 1] == 0].any()
        assert torch.equal(found.unflatten(1, (12, -1))[:, 0], first)


def test_attention_over_tokens_leaves_padding_out():
    whole, longer = cut_of("mean"), padded(X, 20)
    stage = whole.positioned[-1]
    (z, kept), padding = (Positions(whole, (stage,), x)(x)[stage] for x in (X, longer))
    probe = AttentionPool(z.shape[-1], 3, "linear")
    nn.init.normal_(probe.head[-1].weight)
    torch.testing.assert_close(probe(z, kept), probe(*padding), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["bare", "mean", "decoder, mean"])
def test_features_of_a_depth_are_the_mean_of_the_real_tokens(name):
    whole = cut_of(name)
    stage = whole.stages[-2]
    with torch.no_grad():
        hidden = whole.capture(X, (stage,))[stage]
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        wanted = [row[: int(x[1].sum())].mean(0) for row, x in zip(hidden, X, strict=True)]
        torch.testing.assert_close(whole.features(X, stage), torch.stack(wanted))


@pytest.mark.parametrize(("pooling", "place"), [("first", 0), ("last", -1)])
def test_one_token_may_make_the_row(pooling, place):
    model = TextEncoder(bert(), None, pooling).eval()
    with torch.no_grad():
        for row in X[:4]:
            count = int(row[1].sum())
            tokens = model.body(row[None, 0, :count].long()).last_hidden_state[0]
            torch.testing.assert_close(model(row[None])[0], tokens[place], atol=1e-5, rtol=1e-4)


def test_how_tokens_are_pooled_is_told():
    names = ("mean", "first", "decoder, last", "decoder, classifier", "bare")
    told = [cut_of(name).pooling for name in names]
    assert told[:3] == ["mean", "first", "last"]
    assert told[3:] == ["the token that answers", "the model's own, or mean"]


def test_what_lies_under_the_mask_is_never_read():
    whole, dirty = cut_of("mean"), X.clone()
    dirty[:, 0][X[:, 1] == 0] = 17
    assert torch.equal(whole.features(X), whole.features(dirty))


def test_the_order_and_company_of_rows_change_no_figure():
    whole = cut_of("mean")
    samples = Samples.of(TASK)
    reader = Reader(X[:2])
    found = reader.features("a", whole, samples.train.inputs)
    reader.batch = 7
    torch.testing.assert_close(
        torch.from_numpy(reader.features("a", whole, samples.train.inputs)),
        torch.from_numpy(found), atol=1e-6, rtol=1e-5,
    )  # fmt: skip


def test_an_audit_of_rows_padded_longer_gives_the_same_figures():
    def longer(task):
        def part(split):
            inputs, labels = split.tensors()
            return padded(inputs, 20), labels

        return Task(part(task.train), part(task.test), task.name)

    attacks = ["ridge", "knn", "earlier_layer", "concat_blocks", "finetune_last"]
    harmful, model = text_task(80, 4, seed=7), MODELS["mean"]()

    def figures(*tasks):
        space = {"optimizer": ["adamw"], "rate": [0.1], "decay": [0.1], "probe": ["ridge"]}
        effort = {"seeds": 1, "budget": 3, "space": space}
        record = audit({"original": model}, *tasks, attacks=attacks, effort=effort).record
        rows, told = record.figures["attacks"], record.figures["models"]["original"]
        assert {name: row["original"]["status"] for name, row in rows.items()} == dict.fromkeys(
            attacks, "done"
        )
        return (
            {name: row["original"]["score"]["mean"] for name, row in rows.items()},
            [told[name] for name in ("primary", "rho", "retrieval")], told["pooling"],
        )  # fmt: skip

    one, other = figures(TASK, harmful), figures(longer(TASK), longer(harmful))
    assert one[0] == pytest.approx(other[0], abs=1e-6)
    assert one[1] == pytest.approx(other[1], abs=1e-5)
    assert one[2] == "mean"


@pytest.mark.parametrize("name", ["classifier", "mean", "decoder, classifier"])
@pytest.mark.parametrize("settings", [{"weight": 1.0, "depths": 1}, {"weight": 10.0}])
def test_training_sees_no_padding(name, settings):
    """Rows padded longer train to the same weights; texts that differ under the mask as well."""
    model, head = MODELS[name](), HEADS.get(name)
    harmful = text_task(80, 4, seed=7)

    def trained(longer):
        def of(task):
            return task.with_data(*(
                (padded(s.tensors()[0], longer), s.tensors()[1]) for s in (task.train, task.test)
            ))  # fmt: skip

        made = copy.deepcopy(model)
        result = immunize(
            made, of(TASK), of(harmful), "probe", head=head, training=SHORT, **settings
        )
        return torch.cat([p.detach().flatten() for p in result.model.parameters()])

    one, other = trained(12), trained(18)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert float((one - before).abs().max()) > 1e-4
    torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


def test_parts_of_a_batch_train_alike_though_they_are_cut_at_other_lengths():
    harmful = text_task(80, 4, seed=7)

    def trained(accumulate):
        how = Training(layers=["body.encoder.layer.2"], steps=3, batch=16, harmful_batch=40,
                       evaluate=1, accumulate=accumulate)  # fmt: skip
        result = immunize(MODELS["mean"](), TASK, harmful, "probe", training=how, weight=3.0)
        return torch.cat([p.detach().flatten() for p in result.model.parameters()])

    torch.testing.assert_close(trained(1), trained(2), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("method", ["condition", "r_ill", "imma", "opt_kappa"])
def test_every_method_trains_a_text_encoder(method):
    found = immunize(
        MODELS["mean"](), TASK, text_task(80, 4, seed=7), method, training=SHORT
    ).record
    assert found.figures["spectra"]["harmful"]["after"]["dimension"] == 16


@pytest.mark.slow
def test_every_attack_runs_on_text_or_says_why_not():
    harmful, effort = text_task(80, 3, seed=7), {"seeds": 1, "budget": 2}
    found = audit(
        {"original": MODELS["mean"]()}, TASK, harmful, [text_task(40, 2, seed=9)],
        attacks=list(ATTACKS), effort=effort,
    ).record.figures["attacks"]  # fmt: skip
    status = {name: row["original"]["status"] for name, row in found.items()}
    reasons = {name: row["original"].get("reason", "") for name, row in found.items()}
    assert {name for name, said in status.items() if said == "failed"} == set(), reasons
    assert {probe.name for probe in PROBES} <= {n for n, said in status.items() if said == "done"}


def test_low_rank_updates_train_an_encoder_on_masked_text():
    pytest.importorskip("peft")
    found = audit(
        {"original": MODELS["mean"]()}, TASK, text_task(80, 3, seed=7), attacks=["lora"],
        effort={"seeds": 1, "budget": 2},
    ).record.figures["attacks"]["lora"]["original"]  # fmt: skip
    assert found["status"] == "done", found


def test_the_head_is_fitted_to_the_frozen_encoder():
    model = MODELS["mean"]()
    whole = cut(model, X[:2], 3)
    before = copy.deepcopy(model.body.state_dict())
    fit_logistic_head(whole, TASK)
    inputs, labels = TASK.train.tensors()
    with torch.no_grad():
        z = model.embed(inputs).numpy()  # rows have length one
        wanted = LogisticRegression(C=1 / DECAY, max_iter=10_000, tol=1e-8).fit(z, labels)
        found = model(inputs).softmax(1).numpy()
    assert found == pytest.approx(wanted.predict_proba(z), abs=3e-3)
    assert all(torch.equal(value, before[name]) for name, value in model.body.state_dict().items())


@pytest.mark.parametrize(("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "first")])
def test_a_sentence_folder_is_read_and_written_back(mode, pooling, tmp_path):
    source = sentence_folder(tmp_path / "in", mode)
    model = named_network("transformers", str(source), 3, pretrained=True)
    assert (model.pooling, model.normalise) == (pooling, True)
    result = immunize(model, TASK, text_task(80, 4, seed=7), "probe", training=SHORT, weight=10.0)
    export(result.model, result.record, tmp_path / "out")
    names = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()}
    out = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*")}
    assert names | {"README.md", "head.safetensors", "record.json"} <= out
    assert (tmp_path / "out" / "modules.json").read_bytes() == (
        source / "modules.json"
    ).read_bytes()
    assert 'library_name: "sentence-transformers"' in (tmp_path / "out" / "README.md").read_text()
    again = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    assert again.state_dict().keys() == bert().state_dict().keys()
    ids, mask = X[:, 0].long(), X[:, 1]
    hidden = again(ids, attention_mask=mask).last_hidden_state
    wanted = text_encoder(str(tmp_path / "out"))(X)
    torch.testing.assert_close(wanted, result.model.embed(X), atol=1e-6, rtol=1e-5)
    rows = hidden[:, 0] if pooling == "first" else (hidden * mask[..., None]).sum(1)
    torch.testing.assert_close(nn.functional.normalize(rows, dim=1), wanted, atol=1e-5, rtol=1e-4)


def test_an_exported_folder_loads_in_sentence_transformers(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = text_encoder(str(sentence_folder(tmp_path / "in")), 3)
    record = immunize(
        model, TASK, text_task(80, 4, seed=7), "probe", training=SHORT, weight=10.0
    ).record
    export(model, record, tmp_path / "out")
    texts, _ = sentences(5, 3)
    found = sentence_transformers.SentenceTransformer(str(tmp_path / "out")).encode(texts)
    task = Task((texts, [0, 1, 0, 1, 0]), tokenizer=str(tmp_path / "in"))
    torch.testing.assert_close(torch.from_numpy(found), model.embed(task.train.first(5)))


def test_an_encoder_without_modules_is_exported_with_its_own(tmp_path):
    (tmp_path / "in").mkdir()
    bert().save_pretrained(tmp_path / "in")
    tokenizer_of(tmp_path / "in")
    with pytest.raises(SettingsError, match="give pooling, 'mean' or 'first' or 'last'"):
        text_encoder(str(tmp_path / "in"))
    model = named_network("transformers", str(tmp_path / "in"), 3, pretrained=True, pooling="first")
    record = immunize(
        model, TASK, text_task(80, 4, seed=7), "probe", training=SHORT, weight=10.0
    ).record
    export(model, record, tmp_path / "out")
    again = text_encoder(str(tmp_path / "out"))
    assert (again.pooling, again.normalise) == ("first", False)
    torch.testing.assert_close(again(X), model.embed(X))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "pools by pooling_mode_max"),
        ({"modules.json": [{"type": "a.Transformer"}, {"type": "a.Dense"}]}, "made of Transformer"),
        ({"modules.json": [{"type": "a.Transformer", "path": "../x"}, {"type": "a.Pooling"}]},
         "outside its folder"),
    ],
)  # fmt: skip
def test_other_sentence_folders_are_refused(change, says, tmp_path):
    folder = sentence_folder(tmp_path / "in")
    for name, content in change.items():
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match=says):
        text_encoder(str(folder))


def test_folders_of_later_versions_are_read(tmp_path):
    folder = sentence_folder(tmp_path / "in")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = module["type"].replace(".models.", ".base.modules.")
    (folder / "modules.json").write_text(json.dumps(modules))
    found = text_encoder(str(folder))
    assert (found.pooling, found.normalise) == ("first", True)


def test_text_is_tokenised_with_the_models_own_tokenizer(tmp_path):
    tokenizer_of(tmp_path)
    texts, labels = sentences(6, 2)
    task = Task((texts, labels), tokenizer=str(tmp_path), max_length=10)
    first = task.train.first(1)[0]
    count = 2 + len(texts[0].split())
    assert first[0, :count].tolist() == [2, *(4 + WORDS.index(w) for w in texts[0].split()), 3]
    with pytest.raises(SettingsError, match="holds no tokenizer"):
        Task((texts, labels), tokenizer=str(tmp_path / "none"))


RECIPE = """
name = "sentences"
[data]
source = "text"
max_length = 12
primary = { file = "own.json" }
harmful = { file = "harm.json" }
[model]
transformers = "encoder"
pretrained = true
[method]
name = "probe"
weight = 10.0
[training]
layers = ["*"]
steps = 2
batch = 16
harmful_batch = 40
evaluate = 1
[audit]
attacks = ["ridge"]
seeds = 1
budget = 2
"""


def test_a_recipe_fits_the_head_keeps_it_immunizes_and_audits(tmp_path):
    for name, classes, seed in (("own", 3, 0), ("harm", 4, 5)):
        part = {s: list(zip(*sentences(n, classes, seed + n), strict=True))
                for s, n in (("train", 120), ("test", 40))}  # fmt: skip
        named = {s: [(text, f"class {label}") for text, label in rows] for s, rows in part.items()}
        (tmp_path / f"{name}.json").write_text(json.dumps(named))
    sentence_folder(tmp_path / "encoder")
    (tmp_path / "a.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "a.toml")
    tasks = recipe.tasks(str(tmp_path))
    pipeline = Pipeline(recipe, tasks, folder=tmp_path / "kept")
    one, other = pipeline.original(), pipeline.original()
    assert float(one.head.weight.abs().max()) > 0
    assert torch.equal(one.head.weight, other.head.weight)
    assert len(list((tmp_path / "kept").glob("original-*.safetensors"))) == 1
    result = pipeline.immunize()
    export(result.model, result.record, tmp_path / "out")
    record = pipeline.audit().record
    test = tasks.primary.test.tensors()
    with torch.no_grad():
        features = recipe.cut(one, tasks.primary).features(test[0])
    told = record.figures["models"]["original"]["retrieval"]
    assert told == pytest.approx(retrieval(features, test[1]))


def test_retrieval_is_told_before_and_after_and_of_texts_that_nobody_trained_on():
    model, harmful = MODELS["mean"](), text_task(80, 4, seed=7)
    result = immunize(model, TASK, harmful, "probe", training=SHORT, weight=10.0)
    test, labels = TASK.test.tensors()
    with torch.no_grad():
        wanted = [retrieval(each.embed(test), labels) for each in (model, result.model)]
    assert result.record.figures["retrieval"] == pytest.approx(
        dict(zip(("before", "after"), wanted, strict=True))
    )
    assert "nearest neighbour" in str(immunize_table(result.record))
    unseen = text_task(40, 2, seed=9, name="unseen")
    record = audit(
        {"original": model, "two": [result, model]}, TASK, text_task(80, 3, seed=8), [unseen],
        attacks=["ridge"], effort={"seeds": 1, "budget": 2},
    ).record  # fmt: skip
    test, labels = unseen.test.tensors()
    with torch.no_grad():
        one, two = (retrieval(each.embed(test), labels) for each in (model, result.model))
    found = {n: row["retrieval_transfer"] for n, row in record.figures["models"].items()}
    assert found["original"] == pytest.approx({"unseen": one})
    assert found["two"] == pytest.approx({"unseen": (one + two) / 2})
    assert "unseen: nearest neighbour" in str(transfer_table(record))


def test_texts_longer_than_a_model_has_positions_for_are_refused(tmp_path):
    long = torch.ones(2, 2, 50, dtype=torch.int32)
    for name in ("mean", "classifier", "roberta", "mpnet"):
        most = most_tokens(MODELS[name]())
        assert most == {"roberta": 38, "mpnet": 38}.get(name, 32)
        run_model(MODELS[name](), long[..., :most])
        with pytest.raises(SettingsError, match=f"positions for {most}. Set max_length = {most}"):
            run_model(MODELS[name](), long[..., : most + 1])
    for name in ("decoder, mean", "modernbert"):  # they turn their queries instead
        assert most_tokens(MODELS[name]()) is None
    sentence_folder(tmp_path / "encoder")
    (tmp_path / "a.toml").write_text(RECIPE.replace("max_length = 12", "max_length = 33"))
    task = Task((long[..., :33], torch.arange(2)))
    with pytest.raises(SettingsError, match="up to 33 tokens came"):
        load_recipe(tmp_path / "a.toml").extractor(task)


def test_the_weights_of_a_folder_are_compared_with_a_hash(tmp_path):
    source = sentence_folder(tmp_path / "encoder")
    digest = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    given = {"pretrained": True, "sha256": digest}
    named_network("transformers", str(source), 3, **given)
    with pytest.raises(InputError, match="has SHA-256"):
        named_network("transformers", str(source), 3, **given | {"sha256": "0" * 64})
    (source / "model.safetensors").rename(source / "other.safetensors")
    with pytest.raises(SettingsError, match="holds none"):
        named_network("transformers", str(source), 3, **given)


def test_loading_weights_shows_no_bar_and_leaves_the_setting(tmp_path, capfd):
    from transformers.utils import logging

    text_encoder(str(sentence_folder(tmp_path / "encoder")))
    assert "Loading" not in capfd.readouterr().err
    assert logging.is_progress_bar_enabled()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('file = "own.json"', 'file = "../own.json"', "leaves its folder"),
        ('primary = { file', 'tokenizer = "/etc"\nprimary = { file', "leaves its folder"),
        ('transformers = "encoder"', 'transformers = "package:a/../b"', "leaves its folder"),
        ('file = "own.json"', 'fiel = "own.json"', "needs a file"),
        ('pretrained = true', 'pooling = "max"', "pooling"),
        ('transformers = "encoder"\npretrained = true', "network = [4]", "needs a tokenizer"),
    ],
)  # fmt: skip
def test_a_recipe_of_text_is_checked_before_anything_is_read(old, new, says, tmp_path):
    assert old in RECIPE
    (tmp_path / "a.toml").write_text(RECIPE.replace(old, new))
    with pytest.raises(SettingsError, match=says):
        load_recipe(tmp_path / "a.toml")
