"""The code in a released README loads the models of libraries."""

import json

import pytest
import torch

from helpers.readme import loaded
from immunis import immunize
from immunis.models.zoo import named_network
from immunis.report.export import export

X = torch.randn(2, 3, 32, 32)


@pytest.fixture
def record(pair):
    return immunize(torch.eye(5), *pair, "erase", progress=False).record


def readme(folder):
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_an_image_model_is_loaded(library, record, tmp_path, monkeypatch):
    pytest.importorskip(library)
    name = {"timm": "test_resnet", "torchvision": "resnet18"}[library]
    model = named_network(library, name, 4)
    export(model, record.with_settings(recipe={"model": {library: name}}), tmp_path)
    again = loaded(readme(tmp_path), tmp_path, monkeypatch)
    assert torch.equal(again(X), model(X)) and library in readme(tmp_path)


def test_a_sequence_classifier_is_loaded(record, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, intermediate_size=32, num_labels=3, **sizes)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    export(model, record, tmp_path)
    again = loaded(readme(tmp_path), tmp_path, monkeypatch).eval()
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_an_encoder_is_loaded_by_sentence_transformers(record, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from immunis.models.text import TextEncoder

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, intermediate_size=32, **sizes)
    model = TextEncoder(transformers.BertModel(config), pooling="mean").eval()
    export(model, record, tmp_path)
    assert "SentenceTransformer(folder)" in readme(tmp_path)
    assert json.loads((tmp_path / "modules.json").read_text())
    pytest.importorskip("sentence_transformers")
    assert loaded(readme(tmp_path), tmp_path, monkeypatch) is not None
