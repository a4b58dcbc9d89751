"""Encoders of text: a transformers model, how its tokens become one row, and a linear head.

A folder of sentence-transformers is read in plain transformers and written back: ``modules.json``
says which model it holds, how its tokens are pooled, and whether rows are brought to length one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, SettingsError, unknown
from immunis.core.extras import need
from immunis.core.files import read_json
from immunis.core.places import packaged
from immunis.data.feed import check_length
from immunis.data.text import here, no_bar, not_here, unpacked
from immunis.models.positions import pooled

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
POOLINGS = {  # as sentence-transformers calls them
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
}
WEIGHTS = "model.safetensors"
PARTS = ("Transformer", "Pooling", "Normalize")  # modules that are known
KEPT = (".json", ".txt", ".model", ".jinja", ".spm", ".bpe")  # files of a tokenizer, among others
LEFT = ("record.json", "model.safetensors.index.json")  # of an earlier release, of weights
LARGEST = 1 << 26  # bytes of such a file


class TextEncoder(nn.Module):
    """A transformers model that gives one row a text, and a linear head on it.

    It takes packed text (``immunis.data.text``).

    Attributes:
        body: the transformers model.
        head: the primary task's head; None for an encoder alone.
        pooling: which tokens make the row: the mean of all, the first or the last.
        normalise: True if rows have length one.
        folder: where the model came from; ``files_of`` copies its tokenizer from there.
    """

    def __init__(
        self,
        body: nn.Module,
        outputs: int | None = None,
        pooling: str = "mean",
        normalise: bool = False,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise unknown("pooling", str(pooling), POOLINGS)
        config: Any = body.config
        self.body, self.pooling, self.normalise = body, pooling, normalise
        self.folder = None if folder is None else str(folder)
        self.head = None if outputs is None else nn.Linear(config.hidden_size, outputs)

    def embed(self, inputs: Tensor) -> Tensor:
        """Return one row a text; raise SettingsError for longer ones than the model takes."""
        config: Any = self.body.config
        ids, mask = unpacked(inputs, config.pad_token_id)
        check_length(self.body, ids.shape[1])
        tokens = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.pooling == "mean":
            rows = pooled(tokens, True, mask)
        else:
            place = torch.zeros_like(mask[:, 0]) if self.pooling == "first" else mask.sum(1) - 1
            rows = tokens[torch.arange(len(tokens), device=tokens.device), place]
        return nn.functional.normalize(rows, dim=1) if self.normalise else rows

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the head's answers, or the rows of an encoder alone."""
        rows = self.embed(inputs)
        return rows if self.head is None else self.head(rows)


def text_encoder(
    name: str,
    outputs: int | None = None,
    *,
    pooling: str | None = None,
    pretrained: bool = True,
    options: Mapping[str, Any] | None = None,
) -> TextEncoder:
    """Return the encoder in a folder (or of a hub name), with a new head, in evaluation mode.

    ``pooling`` is that of the folder's ``modules.json``; elsewhere it must be given. Without
    ``pretrained`` the weights are random.
    """
    transformers = need("transformers")
    place, known, normalise = Path(name), None, False
    if (place / MODULES).is_file():
        inside, known, normalise = _described(place)
        name = str(place / inside)
    if pooling is None and known is None:
        raise SettingsError(f"{name} does not say how to pool: give pooling, {_any(POOLINGS)}.")
    own: dict[str, Any] = {**here(), **(options or {})}
    try:
        if pretrained:
            with no_bar():
                body = transformers.AutoModel.from_pretrained(name, use_safetensors=True, **own)
        else:
            body = transformers.AutoModel.from_config(
                transformers.AutoConfig.from_pretrained(name, **own)
            )
    except OSError as error:
        raise not_here(name, error) from error
    folder = place if place.is_dir() else None
    return TextEncoder(body, outputs, pooling or known or "", normalise, folder).eval()


def weights_file(name: str) -> Path:
    """Return the file with the weights of a folder, or of ``package:NAME/PATH``.

    Raises:
        SettingsError: if there is no such file.
    """
    place = Path(packaged(name) or name)
    if (place / MODULES).is_file():
        place /= _described(place)[0]
    if not (place / WEIGHTS).is_file():
        raise SettingsError(f"sha256 is that of {WEIGHTS} in a folder; {name} holds none.")
    return place / WEIGHTS


def _any(names: Any) -> str:
    return " or ".join(map(repr, names))


def _described(folder: Path) -> tuple[str, str, bool]:
    """Return where a folder holds its model, how that pools, and if rows have length one.

    Raises:
        InputError: for modules that are not known here.
    """
    modules = read_json(folder / MODULES, list)
    if not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{folder / MODULES} is no list of modules, as the library writes it.")
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if kinds[:2] != list(PARTS[:2]) or kinds[2:] not in ([], [PARTS[2]]):
        raise InputError(
            f"{folder} is made of {', '.join(kinds)}; expected {', '.join(PARTS)}. Wrap such a "
            "model in a module of your own that takes packed text."
        )
    paths = [str(module.get("path", "")) for module in modules]
    if any(Path(path).is_absolute() or ".." in Path(path).parts for path in paths):
        raise InputError(f"{folder / MODULES} names a path outside its folder.")
    config = read_json(folder / paths[1] / "config.json", dict)
    modes = [n for n, on in config.items() if n.startswith("pooling_mode_") and on is True]
    found = [pooling for pooling, mode in POOLINGS.items() if mode in modes]
    if "pooling_mode" in config:  # as later versions write it
        modes = [str(config["pooling_mode"])]
        found = [{"cls": "first", "lasttoken": "last"}.get(mode, mode) for mode in modes]
    if len(modes) != 1 or found not in ([one] for one in POOLINGS):
        raise InputError(f"{folder} pools by {', '.join(modes)}; expected {_any(POOLINGS)}.")
    return paths[0], found[0], len(kinds) > 2


def inside_of(encoder: TextEncoder) -> str:
    """Return where in its folder an encoder's transformers model lies; "" for the folder itself."""
    base = Path(encoder.folder or "")
    return _described(base)[0] if encoder.folder and (base / MODULES).is_file() else ""


def files_of(encoder: TextEncoder) -> dict[str, bytes | str]:
    """Return the files of a sentence-transformers folder, without weights and README, by name.

    They are those of the folder that the encoder came from, its tokenizer among them; and modules
    and pooling, where that folder says nothing of them, or other things.
    """
    found: dict[str, bytes | str] = {}
    base, inside, stated = Path(encoder.folder or ""), inside_of(encoder), None
    if encoder.folder is not None:
        for path in sorted(base.rglob("*")):
            if path.suffix in KEPT and path.name not in LEFT and path.stat().st_size <= LARGEST:
                found[str(path.relative_to(base))] = path.read_bytes()
        stated = _described(base)[1:] if MODULES in found else None
    config: Any = encoder.body.config
    own = {**config.to_dict(), "architectures": [type(encoder.body).__name__]}
    found.setdefault(str(Path(inside) / "config.json"), json.dumps(own, indent=2, default=str))
    if stated != (encoder.pooling, encoder.normalise):
        named = zip((inside, "1_Pooling", "2_Normalize"), PARTS, strict=True)
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(named)
        ]
        width = {"word_embedding_dimension": config.hidden_size}
        modes = {mode: name == encoder.pooling for name, mode in POOLINGS.items()}
        found[MODULES] = json.dumps(modules if encoder.normalise else modules[:2], indent=2)
        found[POOLING] = json.dumps(width | modes, indent=2)
    return found
