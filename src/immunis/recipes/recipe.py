"""A recipe: a run described, with the data and the model that it describes."""

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
from immunis.data import sources
from immunis.data.sources import Tasks
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.models.find_head import cut
from immunis.models.weights import read_tensors
from immunis.models.zoo import LIBRARIES, named_network, pretrained_mlp

NETWORKS = (*LIBRARIES, "network")
TABLES = ("data", "model", "pretrain", "method", "training", "audit")
SOURCES: dict[str, Callable[..., Tasks]] = {
    "digits": sources.digits,
    "digit-parity": sources.digit_parity,
    "house-prices": sources.house_prices,
    "mnist-pair": sources.mnist_pair,
    "mnist-digits": sources.mnist_digits,
    "npz": sources.npz,
    "images": sources.images,
}


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    Attributes:
        name: how the run is called.
        data: the source and its options.
        method: the method's name and settings; empty in a recipe that only measures.
        model: ``{"init": "identity" | "random"}``; ``{"weights": "layer.safetensors"}``;
            ``{"network": [128, 64]}``, a small network pre-trained on the primary task; or
            ``{"timm": "resnet18"}`` (``torchvision``, ``transformers``) with ``pretrained``, a
            local ``checkpoint``, the library's own ``options``, and ``head``, the name of its
            linear head where it cannot be guessed.
        audit: the fields of ``Effort``, ``attacks``, and ``methods``: the defences to compare. Each
            is a table with a name, its settings, and ``label`` and ``training`` of its own. The
            recipe's own method joins them if it has a label or there are no others.
        pretrain: settings of ``Training`` on the primary task, before any defence; None for none.
        training: settings of ``Training`` for methods that train the network; None for none.
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
        """The name of the network's head, if the recipe gives it."""
        return self.model.get("head")

    @property
    def attacks(self) -> Any:
        """The attacks of its audit: a preset, or names."""
        return self.audit.get("attacks", "standard")

    @property
    def is_network(self) -> bool:
        """True if its model is a network, not a linear map."""
        return any(kind in self.model for kind in NETWORKS)

    @property
    def is_trained(self) -> bool:
        """True if its own method trains the network."""
        return self.training_for(self.method) is not None

    def training_for(self, table: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return [training] overridden by a method's own; None where neither is given."""
        if self.training is None and "training" not in table:
            return None
        return {**(self.training or {}), **table.get("training", {})}

    def cut(self, model: nn.Module | Tensor, primary: Task) -> Cut:
        """Return a model of the recipe, cut into extractor and head."""
        return cut(model, primary.train.first(2), primary.outputs, self.head)

    def to_dict(self) -> dict[str, Any]:
        """Return what a record keeps of the recipe."""
        parts = {name: getattr(self, name) for name in TABLES}
        optional = ("pretrain", "training")  # an empty table is a choice
        given = {k: v for k, v in parts.items() if v or (v is not None and k in optional)}
        return {**given, "seed": self.seed}

    def tasks(self, data_folder: str | None = None) -> Tasks:
        """Load the recipe's data; ``data_folder`` overrides where files are looked for."""
        options = dict(self.data)
        source = SOURCES[options.pop("source")]
        if "folder" in inspect.signature(source).parameters:
            if data_folder is not None:
                options["folder"] = data_folder
            elif source is sources.npz:
                options["folder"] = str(self.folder / options.get("folder", "."))
        return source(**options)

    def extractor(self, primary: Task) -> nn.Module | Tensor:
        """Return what to immunize: identity, random, from a file, or a network."""
        model = self.model
        if "weights" in model:
            return _read_layer(self.folder / str(model["weights"]))
        if "network" in model:
            return pretrained_mlp(primary, model["network"], seed=self.seed)
        if self.is_network:
            library = next(library for library in LIBRARIES if library in model)
            file, name = model.get("checkpoint"), model[library]
            if library == "transformers" and (self.folder / name).is_dir():
                name = str(self.folder / name)
            return named_network(
                library,
                name,
                primary.outputs,
                pretrained=model.get("pretrained", False),
                weights=None if file is None else self.folder / file,
                options=model.get("options"),
                seed=self.seed,
            )
        dimension = math.prod(primary.input_shape)
        if model.get("init", "identity") == "identity":
            return torch.eye(dimension, dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        theta = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        return theta / dimension**0.5


def _read_layer(path: Path) -> nn.Linear:
    tensors = read_tensors(path)
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if weight is None or weight.ndim != 2:
        told = f"{path} holds {', '.join(tensors) or 'nothing'}"
        raise InputError(f"{told}; expected 'weight' (out×in) and perhaps 'bias' of nn.Linear.")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=weight.dtype)
    layer.load_state_dict({k: v for k, v in tensors.items() if k in ("weight", "bias")})
    return layer
