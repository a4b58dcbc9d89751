"""How a released folder is loaded, as a section of its README with code that runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from immunis.report.markup import inline

TITLE = "## How to load it"
HERE = 'folder = "."  # where this file is'
_PLACE = re.compile(rf"({re.escape(TITLE)}\n.*?)^folder = [^\n]*$", re.M | re.S)
_FETCH = "from huggingface_hub import snapshot_download\n"
_NAME = re.compile(r"[A-Za-z_]\w*")
_STATE = 'load_file(f"{folder}/model.safetensors")'
_CONFIG = 'config = json.load(open(f"{folder}/config.json", encoding="utf-8"))'
_BUILD = """def build(layers):
    if "parts" in layers:
        return nn.Sequential(OrderedDict((n, build(p)) for n, p in layers["parts"].items()))
    args = {n: tuple(v) if isinstance(v, list) else v for n, v in layers["args"].items()}
    return getattr(nn, layers["kind"])(**args)"""


def section(config: Mapping[str, Any], encoder: bool = False) -> str:
    """Return the section for a folder with that ``config.json``; of an ``encoder`` of text."""
    words, code = _snippet(config, encoder)
    return "\n".join([TITLE, "", words, "", "```python", *code, "```", ""])


def from_hub(readme: str, repository: str) -> str:
    """Return a README whose code loads the folder from the hub."""
    code = f"{_FETCH}folder = snapshot_download({json.dumps(repository)})"
    return _PLACE.sub(lambda found: found[1].removesuffix(_FETCH) + code, readme, count=1)


def _snippet(config: Mapping[str, Any], encoder: bool) -> tuple[str, list[str]]:
    """Return what is said before the code, and the code's lines."""
    library, names = config.get("library"), config.get("architectures")
    names = [str(name) for name in names] if isinstance(names, list) and names else [""]
    if encoder:
        code = ["from sentence_transformers import SentenceTransformer", ""]
        return "With sentence-transformers:", [*code, HERE, "model = SentenceTransformer(folder)"]
    if "pretrained_cfg" in config:
        make = 'model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()'
        return "With timm:", ["import timm", "", HERE, make]
    if library is None and _NAME.fullmatch(names[0]):
        code = [f"from transformers import {names[0]}", ""]
        return "With transformers:", [*code, HERE, f"model = {names[0]}.from_pretrained(folder)"]
    heads, words, made = _torch(config, names[0])
    load = f"model.load_state_dict({_STATE}, assign=True)  # in the dtype of the file"
    code = ["import json", *heads, "", HERE, _CONFIG, *made, load, "model.eval()"]
    if "not_rebuilt" in config:
        code.remove("import json")
        code.remove(_CONFIG)
    return words, code


def _torch(config: Mapping[str, Any], name: str) -> tuple[list[str], str, list[str]]:
    """Return imports, words, and the lines that build a model of torch or torchvision."""
    state = "from safetensors.torch import load_file"
    if config.get("library") == "torchvision":
        made = 'torchvision.models.get_model(config["architecture"], **more)'
        more = 'more = {"num_classes": config["num_classes"], **config.get("model_args", {})}'
        words = "With torchvision:"
        return ["import torchvision", state], words, [more, f"model = {made}"]
    if "layers" in config:
        heads = ["from collections import OrderedDict", state, "from torch import nn"]
        words = "With PyTorch alone; `config.json` lists the layers:"
        return heads, words, ["", _BUILD, "", 'model = build(config["layers"])']
    place, _, inside = str(config.get("class", "")).partition(":")
    outside = _NAME.fullmatch(inside) and all(map(_NAME.fullmatch, place.split(".")))
    known = outside and place != "__main__"
    heads = [f"from {place} import {inside}", state] if known else [state]
    told = (
        "its authors' code" if known else f"the class `{inline(name)}`, which is not released here"
    )
    if "model_args" in config and _NAME.fullmatch(name):
        words = f"`config.json` has the arguments; you need {told}:"
        return heads, words, [f'model = {name}(**config["model_args"])']
    why = inline(str(config.get("not_rebuilt", "its class is not known"))).replace("`", "'")
    words = (
        f"**`config.json` cannot build this model again**: {why}. Build `model` as it was built, "
        "then load the weights into it:"
    )
    return [state], words, []
