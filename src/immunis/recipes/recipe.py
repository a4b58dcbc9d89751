"""A recipe: a run described, and what it describes, built."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.data import sources as datasets
from immunis.data.sources import Tasks
from immunis.data.task import Task
from immunis.models.weights import read_tensors
from immunis.models.zoo import LIBRARIES, named_network, pretrained_mlp

NETWORKS = (*LIBRARIES, "network")
TABLES = ("data", "model", "pretrain", "method", "training", "audit")
SOURCES: dict[str, Callable[..., Tasks]] = {
    "digits": datasets.digits,
    "digit-parity": datasets.digit_parity,
    "house-prices": datasets.house_prices,
    "mnist-pair": datasets.mnist_pair,
    "mnist-digits": datasets.mnist_digits,
    "npz": datasets.npz,
    "images": datasets.images,
}


def _folder_key(source: Callable[..., Tasks]) -> bool:
    return "folder" in inspect.signature(source).parameters


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    Attributes:
        name: how the run is called.
        data: the source and its options.
        method: the method's name and settings; empty in a recipe that only measures.
        model: ``{"init": "identity" | "random"}``, ``{"weights": "layer.safetensors"}``, or
            ``{"network": [128, 64]}`` for a small network pre-trained on the primary task; or
            ``{"timm": "resnet18"}`` (``torchvision``, ``transformers``) with ``pretrained``, a
            local ``checkpoint``, the library's own ``options``, and ``head``, the name of its
            linear head where it cannot be told.
        pretrain: settings of ``Training``: the network is trained on the primary task first;
            None where it is not.
        training: settings of ``Training``: methods train the network; None where they do not.
        audit: ``attacks``, ``seeds``, ``budget``, ``trials``, ``space`` (settings that attacks
            may search, where not all), and ``methods``: which defences to compare, each a
            table with a name, its settings, and ``label`` and ``training`` of its own; the recipe's
            own method is one of them where it has a label, or where there are no others.
        seed: seeds the initial θ and the method.
        folder: where relative paths in the recipe start.
    """

    name: str
    data: Mapping[str, Any]
    method: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=lambda: {"init": "identity"})
    audit: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    seed: int = 0
    folder: Path = Path(".")

    @property
    def head(self) -> str | None:
        """Name of the network's head, if the recipe has it."""
        return self.model.get("head")

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps of the recipe."""
        parts = {name: getattr(self, name) for name in TABLES}
        given = {
            name: part
            for name, part in parts.items()
            if part or (part is not None and name in ("pretrain", "training"))
        }
        return {**given, "seed": self.seed}

    def training_for(self, table: Mapping[str, Any]) -> dict[str, Any] | None:
        """Settings with which one of its methods trains the network; None if it does not train."""
        return training_for(self.training, table)

    def tasks(self, data_folder: str | None = None) -> Tasks:
        """Load the recipe's data; ``data_folder`` overrides where files are looked for."""
        options = dict(self.data)
        source = SOURCES[options.pop("source")]
        if _folder_key(source):
            if data_folder is not None:
                options["folder"] = data_folder
            elif source is datasets.npz:
                options["folder"] = str(self.folder / options.get("folder", "."))
        return source(**options)

    @property
    def is_network(self) -> bool:
        """Whether its model is a network, and no linear map."""
        return any(kind in self.model for kind in NETWORKS)

    def extractor(self, primary: Task) -> nn.Module | Tensor:
        """Return what to immunize: identity, random, from a file, or a small trained network."""
        if "weights" in self.model:
            return _read_layer(self.folder / str(self.model["weights"]))
        if "network" in self.model:
            return pretrained_mlp(primary, self.model["network"], seed=self.seed)
        for library in LIBRARIES:
            if library in self.model:
                file, name = self.model.get("checkpoint"), self.model[library]
                if library == "transformers" and (self.folder / name).is_dir():
                    name = str(self.folder / name)
                return named_network(
                    library,
                    name,
                    primary.outputs,
                    pretrained=self.model.get("pretrained", False),
                    weights=None if file is None else self.folder / file,
                    options=self.model.get("options"),
                    seed=self.seed,
                )
        dimension = math.prod(primary.input_shape)
        if self.model.get("init", "identity") == "identity":
            return torch.eye(dimension, dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        theta = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        return theta / dimension**0.5


def training_for(
    training: Mapping[str, Any] | None, table: Mapping[str, Any]
) -> dict[str, Any] | None:
    """A recipe's [training] with a method's own over it; None where neither is given."""
    if training is None and "training" not in table:
        return None
    return {**(training or {}), **table.get("training", {})}


def _read_layer(path: Path) -> nn.Linear:
    tensors = read_tensors(path)
    weight = tensors.get("weight")
    if weight is None or weight.ndim != 2:
        raise InputError(
            f"{path} holds {', '.join(tensors) or 'nothing'}; expected 'weight' (out×in) and "
            "optionally 'bias', as in nn.Linear.state_dict()."
        )
    bias = tensors.get("bias")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=weight.dtype)
    layer.load_state_dict({k: v for k, v in tensors.items() if k in ("weight", "bias")})
    return layer
