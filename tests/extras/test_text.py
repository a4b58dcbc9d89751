"""A transformers encoder made from a configuration: cut, trained, exported, loaded again."""

import pytest
import torch
import transformers
from torch import nn

from immunis import SettingsError, Task, audit, immunize
from immunis.models.find_cut import cut
from immunis.models.weights import config
from immunis.report.export import export
from immunis.training.settings import Training


def classifier():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval()


def tokens(n, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randint(5, 40, (n, 8), generator=generator)
    x[:, 1] = y + 5 * seed
    return Task((x, y), (x[: n // 2], y[: n // 2]), f"tokens {seed}")


def test_the_encoder_is_cut_at_its_pooled_output():
    whole = cut(classifier(), tokens(20, 3, 1).train.first(2), 3)
    assert (whole.head, whole.width) == ("classifier", 16)
    features = whole.features(tokens(20, 3, 1).train.first(4))
    assert features.shape == (4, 16)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}


@pytest.mark.parametrize(
    ("config", "head", "first", "last"),
    [
        (transformers.RobertaConfig(vocab_size=40, intermediate_size=24, **SMALL), None,
         "roberta.embeddings", "roberta.encoder.layer.1"),
        (transformers.DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=24,
         num_labels=3), None, "distilbert.embeddings", "pre_classifier"),
        (transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, num_labels=3,
         pad_token_id=0), "score", "transformer.wte", "transformer.h.1"),
    ],
)  # fmt: skip
def test_an_encoder_is_opened_into_its_blocks(config, head, first, last):
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    x = tokens(20, 3, 1).train.first(5)
    whole = cut(model, x[:2], 3, head)
    assert (whole.stages[0], len(whole.stages) >= 3) == (first, True)
    assert last in whole.stages[-2:]
    assert all(len(whole.features(x, stage)) == 5 for stage in whole.stages)


@pytest.mark.filterwarnings("ignore")
def test_earlier_layers_of_an_encoder_are_attacked():
    primary, harmful = tokens(60, 3, 1), tokens(60, 2, 2)
    space = {"optimizer": ["adamw"], "rate": [0.1], "decay": [0.1]}  # of fine-tuning
    effort = {"seeds": 1, "budget": 5, "space": space}
    found = audit(
        {"original": classifier()}, primary, harmful, effort=effort,
        attacks=["earlier_layer", "finetune_last", "reinit_last", "concat_blocks"],
    )  # fmt: skip
    rows = found.record.figures["attacks"]
    assert {name: row["original"]["status"] for name, row in rows.items()} == dict.fromkeys(
        rows, "done"
    )


def test_a_head_put_in_place_of_another_is_counted(tmp_path):
    model = classifier()
    model.classifier = nn.Linear(model.config.hidden_size, 5)
    assert len(config(model)["id2label"]) == 5
    assert len(model.config.id2label) == 3  # the model's own is left as it is
    bare = transformers.BertModel(model.config, add_pooling_layer=False)
    assert config(bare)["architectures"] == ["BertModel"]
    model.classifier = nn.Linear(model.config.hidden_size + 1, 5)
    with pytest.raises(SettingsError, match="would build another Bert.*classifier"):
        config(model)


def test_a_wrapper_with_a_configuration_is_no_transformers_model():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = classifier()
            self.config = self.inner.config

    found = config(Wrapped())
    assert found["architectures"] == ["Wrapped"] and found["library"] == "torch"


def test_a_bare_encoder_is_trained_with_a_head_beside_it(tmp_path):
    primary, harmful = tokens(60, 3, 1), tokens(60, 2, 2)
    encoder = classifier().bert
    training = Training(layers=["encoder.layer.1"], steps=3, batch=16, harmful_batch=40, evaluate=1)
    head = nn.Linear(encoder.config.hidden_size, 3)
    result = immunize(encoder, primary, harmful, "probe", head=head, training=training, weight=10.0)
    export(result.model, result.record, tmp_path)
    assert 'library_name: "transformers"' in (tmp_path / "README.md").read_text()
    again = transformers.AutoModel.from_pretrained(tmp_path).eval()
    x = primary.test.first(4)
    assert torch.allclose(again(x).pooler_output, result.model(x).pooler_output, atol=1e-6)
    assert result.head.out_features == 3


def test_it_is_trained_and_loads_with_from_pretrained(tmp_path):
    training = Training(
        layers=["bert.encoder.layer.1", "bert.pooler"], steps=3, batch=16, harmful_batch=40,
        evaluate=1,
    )  # fmt: skip
    primary, harmful = tokens(60, 3, 1), tokens(60, 2, 2)
    result = immunize(classifier(), primary, harmful, "probe", training=training, weight=10.0)
    export(result.model, result.record, tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    x = primary.test.first(4)
    assert torch.allclose(again(x).logits, result.model(x).logits, atol=1e-6)
    assert isinstance(result.head, nn.Linear)


def test_of_a_t5_encoder_the_last_block_is_trained_with_the_norm_behind_it():
    made = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2
    )
    whole = cut(transformers.T5EncoderModel(made).eval(), tokens(20, 3, 1).train.first(2))
    assert whole.stages[-1].endswith("block.1")
    assert whole.norms[whole.stages[-1]] == ("encoder.final_layer_norm",)


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_is_read_at_the_last_token_that_is_no_padding():
    made = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, num_labels=3, pad_token_id=0
    )
    model = transformers.GPT2ForSequenceClassification(made).eval()
    primary, harmful = tokens(60, 3, 1), tokens(60, 3, 2)
    x = primary.train.first(4).clone()
    x[2, 5:] = 0
    read = cut(model, x[:2], 3, "score").features(x)
    hidden = model.transformer(x).last_hidden_state
    wanted = hidden[torch.arange(4), torch.tensor([7, 7, 4, 7])]
    torch.testing.assert_close(read, wanted, atol=1e-5, rtol=1e-4)
    training = Training(steps=2, batch=16, harmful_batch=40, evaluate=1)
    found = immunize(model, primary, harmful, "probe", head="score", training=training, weight=10.0)
    assert found.record.figures["spectra"]["harmful"]["after"]["dimension"] == 16
    pytest.importorskip("peft")
    tried = audit(
        {"original": model},
        primary,
        harmful,
        attacks=["lora"],
        head="score",
        effort={"seeds": 1, "budget": 2},
    )
    assert tried.record.figures["attacks"]["lora"]["original"]["status"] == "done"


@pytest.mark.filterwarnings("ignore")
def test_adapters_of_peft_are_merged_before_export(tmp_path):
    peft = pytest.importorskip("peft")
    record = immunize(
        classifier(), tokens(60, 3, 1), tokens(60, 3, 2), "probe", training={"steps": 1}
    ).record
    adapted = peft.get_peft_model(classifier(), peft.LoraConfig(target_modules=["query"], r=2))
    with pytest.raises(SettingsError, match="merge_and_unload"):
        export(adapted.eval(), record, tmp_path / "adapted")
    assert not (tmp_path / "adapted").exists()
    merged = adapted.merge_and_unload()
    export(merged, record, tmp_path / "merged")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "merged")
    ids = tokens(20, 3, 1).train.first(2)
    assert torch.allclose(again.eval()(ids).logits, merged.eval()(ids).logits)
