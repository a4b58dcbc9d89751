"""Weights that a library or a hub knows by name, found on this machine, and how they want images.

Nothing is downloaded unless ``$IMMUNIS_DOWNLOAD`` is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from immunis.core.errors import InputError, SettingsError
from immunis.core.extras import need
from immunis.core.files import read_json
from immunis.core.places import absent, may_download

TIMM, HUB = "timm:", "hub:"  # prefixes of a checkpoint by name
FILES = ("model.safetensors", "pytorch_model.bin")
PROCESSOR, LOCAL = "preprocessor_config.json", "local-dir:"


def named_file(reference: str) -> Path | None:
    """Return the file that ``hub:OWNER/NAME`` or ``hub:OWNER/NAME/FILE`` means; None for others.

    Raises:
        InputError: if it is not on this machine, with where to get it and where to put it.
    """
    if not reference.startswith(HUB):
        return None
    owner, _, rest = reference.removeprefix(HUB).partition("/")
    name, _, file = rest.partition("/")
    if not (owner and name):
        raise SettingsError(f"{reference!r}: expected hub:OWNER/NAME, or hub:OWNER/NAME/FILE.")
    return _from_hub(f"{owner}/{name}", [file] if file else FILES)


def timm_place(name: str) -> str:
    """Return a timm model's name; of a hub's model, as the folder where its files are."""
    prefix, _, repository = name.partition(":")
    if prefix not in ("hf-hub", "hf_hub"):
        return name
    _from_hub(repository, FILES)
    return LOCAL + str(_from_hub(repository, ["config.json"]).parent)


def timm_file(name: str) -> Path:
    """Return the file of the weights that timm has for a model's name.

    Raises:
        InputError: if it is not on this machine, with where to get it and where to put it.
        SettingsError: if timm has none.
    """
    known = _timm_config(name)
    if known is None or not known.has_weights:
        raise SettingsError(f"timm has no weights for {name!r}; give a checkpoint of your own.")
    if known.file:
        return Path(known.file)
    if known.url and not known.hf_hub_id:
        return _from_url(known.url, f"weights of {name}")
    files = [known.hf_hub_filename] if known.hf_hub_filename else FILES
    return _from_hub(known.hf_hub_id, files)


def need_torchvision(name: str) -> None:
    """Raise InputError if torchvision's own weights of a model are not on this machine."""
    _from_url(_torchvision_weights(name).url, f"weights of {name}")


def _torchvision_weights(name: str) -> Any:
    models = need("torchvision.models")
    try:
        return models.get_model_weights(name)["DEFAULT"]
    except (ValueError, KeyError) as error:
        raise SettingsError(f"torchvision has no weights for {name!r}: {error}") from error


def _from_url(url: str, what: str) -> Path:
    place = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
    if not place.exists():
        if not may_download():
            raise absent(what, url, f"put it at {place}")
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(place))
    return place


def _from_hub(repository: str, files: Sequence[str]) -> Path:
    hub, errors = need("huggingface_hub"), need("huggingface_hub.errors")
    repository, _, revision = repository.partition("@")
    offline = not may_download()
    for file in files:
        try:
            found = hub.hf_hub_download(
                repository, file, revision=revision or None, local_files_only=offline
            )
            return Path(found)
        except (errors.EntryNotFoundError, errors.HfHubHTTPError, OSError, ValueError):
            continue  # not cached, or not there
    page = f"https://huggingface.co/{repository}/resolve/{revision or 'main'}/{files[0]}"
    run = f"hf download {repository} {files[0]} (it goes to {hub.constants.HF_HUB_CACHE})"
    raise absent(f"{repository} ({' or '.join(files)})", page, f"run: {run}")


def _timm_config(name: str) -> Any:
    models = need("timm.models")
    try:
        return models.get_pretrained_cfg(name)
    except (RuntimeError, KeyError, ValueError) as error:
        raise SettingsError(f"timm has no weights called {name!r}: {error}") from error


def shown_as(library: str, name: str) -> dict[str, Any]:
    """Return ``mean``, ``std`` and ``size`` of the images that a pre-trained model expects.

    They are those of timm's ``pretrained_cfg``, of torchvision's weights, or of a transformers
    model's ``preprocessor_config.json``; empty where none of these says anything.
    """
    if library == "timm" and (name := timm_place(name)).startswith(LOCAL):
        return _of_folder(Path(name.removeprefix(LOCAL)) / "config.json")
    if library == "timm":
        known = _timm_config(name)
        if known is None:
            return {}
        return {"mean": known.mean, "std": known.std, "size": known.input_size[-1]}
    if library == "torchvision":
        how = _torchvision_weights(name).transforms()
        return {"mean": tuple(how.mean), "std": tuple(how.std), "size": how.crop_size[0]}
    place = Path(name) / PROCESSOR
    if not Path(name).is_dir():
        try:
            place = _from_hub(name, [PROCESSOR])
        except InputError:
            return {}
    return _of_processor(place)


def _of_folder(path: Path) -> dict[str, Any]:
    try:
        known = read_json(path, dict)["pretrained_cfg"]
        mean, std = tuple(known["mean"]), tuple(known["std"])
        return {"mean": mean, "std": std, "size": int(known["input_size"][-1])}
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} does not say how images are prepared: {error!r}.") from error


def _of_processor(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    known = read_json(path, dict)
    try:
        size = known.get("crop_size") or known.get("size")
        if isinstance(size, Mapping):
            size = size.get("height", size.get("shortest_edge"))
        mean, std = tuple(known["image_mean"]), tuple(known["image_std"])
        return {"mean": mean, "std": std, **({} if size is None else {"size": int(size)})}
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} does not say how images are prepared: {error}.") from error
