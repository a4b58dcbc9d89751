"""Tiny models of text and their folders, made from nothing: no download."""

import json

import torch

from immunis import Task
from immunis.data.text import pack

WORDS = [f"w{number}" for number in range(40)]
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}


def bert(classes=None, **more):
    """A random BERT: the encoder, or a classifier of that many classes."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, intermediate_size=24, max_position_embeddings=32,
        num_labels=classes or 2, **SIZES | more,
    )  # fmt: skip
    made = transformers.BertForSequenceClassification if classes else transformers.BertModel
    return made(config).eval()


def tokenizer_of(folder):
    """Save a tokenizer that has one token for each of ``WORDS``."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: place for place, word in enumerate([*special, *WORDS])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)


def sentence_folder(folder, mode="mean_tokens", normalise=True):
    """Write a random encoder as sentence-transformers does."""
    bert().save_pretrained(folder)
    tokenizer_of(folder)
    kinds = ("Transformer", "Pooling", "Normalize")[: 2 + normalise]
    paths = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{m}": m == mode for m in ("mean_tokens", "cls_token", "max_tokens")}
    content = json.dumps({"word_embedding_dimension": 16, **modes})
    (folder / "1_Pooling" / "config.json").write_text(content)
    return folder


def sentences(n, classes, seed=0, longest=9):
    """Texts of unequal length whose first word tells their class, and the labels."""
    generator = torch.Generator().manual_seed(seed)

    def words(count):
        return [WORDS[10 + i] for i in torch.randint(0, 30, (count,), generator=generator)]

    sizes = torch.randint(3, longest, (n,), generator=generator).tolist()
    labels = [row % classes for row in range(n)]
    return [
        " ".join([WORDS[label], *words(size)]) for label, size in zip(labels, sizes, strict=True)
    ], labels


def text_task(n=60, classes=3, seed=0, length=12, name="texts"):
    """The same as token ids and masks."""

    def part(count, seed):
        texts, labels = sentences(count, classes, seed)
        ids = [[2, *(4 + WORDS.index(word) for word in text.split()), 3] for text in texts]
        return pack(ids, length=length), torch.tensor(labels)

    return Task(part(n, seed), part(n // 2, seed + 100), name)


def padded(inputs, length):
    """Return packed text with columns of padding added."""
    return torch.nn.functional.pad(inputs, (0, length - inputs.shape[2]))
