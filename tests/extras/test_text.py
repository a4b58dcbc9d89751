"""A transformers encoder made from a configuration: cut, trained, exported, loaded again."""

import torch
import transformers
from torch import nn

from immunis import Task, immunize
from immunis.export import export
from immunis.features import cut
from immunis.plan import Training


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
    (features,) = whole.read(tokens(20, 3, 1).train.first(4))
    assert features.shape == (4, 16)


def test_it_is_trained_and_loads_with_from_pretrained(tmp_path):
    training = Training(
        layers=["bert.encoder.layer.1", "bert.pooler"], steps=3, batch=16, harmful_batch=40,
        evaluate=1,
    )  # fmt: skip
    primary, harmful = tokens(60, 3, 1), tokens(60, 2, 2)
    result = immunize(classifier(), primary, harmful, "probe", training=training)
    export(result.model, result.record, tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    x = primary.test.first(4)
    assert torch.allclose(again(x).logits, result.model(x).logits, atol=1e-6)
    assert isinstance(result.head, nn.Linear)
