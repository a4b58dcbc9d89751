"""Recipes: a run described in TOML. The bundled ones lie beside this file.

A recipe names its data source and, for ``immunize``, its method; everything else has a
default. Unknown keys are refused. Recipes are data: nothing in them is executed.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch
from torch import Tensor, nn

from immunis import datasets
from immunis.attacks import GROUPS, check_space, select
from immunis.datasets import Tasks
from immunis.errors import InputError, SettingsError, unknown
from immunis.methods import METHODS, Method, get_method
from immunis.networks import LIBRARIES, named_network, pretrained_mlp, read_tensors
from immunis.plan import training_of
from immunis.settings import check, fits
from immunis.tasks import Task
from immunis.views import CONTROL, ORIGINAL, SCRATCH

FOLDER = Path(__file__).parent
MOST = 1 << 18  # bytes of a recipe
DEEP = re.compile(  # a key of so many parts that reading it would fill the memory
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}"""
)
PATHS = ("primary", "harmful", "attacker", "transfer", "folder", "weights", "checkpoint")
KINDS: dict[str, Any] = {
    "init": Literal["identity", "random"],
    "weights": str,
    "network": Sequence[int],
    **dict.fromkeys(LIBRARIES, str),
}
MODEL = {**KINDS, "pretrained": bool, "checkpoint": str, "options": dict, "head": str}
AUDIT = {
    "attacks": str | Sequence[str],
    "seeds": int,
    "budget": int,
    "trials": int,
    "methods": Sequence[dict],
    "space": dict,
}
SOURCES: dict[str, Callable[..., Tasks]] = {
    "digits": datasets.digits,
    "digit-parity": datasets.digit_parity,
    "house-prices": datasets.house_prices,
    "mnist-pair": datasets.mnist_pair,
    "mnist-digits": datasets.mnist_digits,
    "npz": datasets.npz,
    "images": datasets.images,
}
RESERVED = (ORIGINAL, CONTROL, SCRATCH)
TABLES = ("data", "model", "pretrain", "method", "training", "audit")
SECTIONS = {"name", "seed", *TABLES}


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
        return _training_for(self.training, table)

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

    def check_measured(self) -> None:
        """Refuse inputs that cannot be measured as they are.

        Raises:
            SettingsError: for images.
        """
        if self.data["source"] == "images":
            raise SettingsError(
                f"{self.name} reads images, and measure looks at inputs as they are. `immunis "
                "audit` measures a network's features; so does measure(primary, harmful, "
                "extractor) from Python."
            )

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


def catalogue() -> dict[str, list[dict[str, str]]]:
    """What there is to choose from: methods with their settings, attacks, recipes, sources."""

    def settings(method: Method) -> str:
        kinds = {"": method.settings, "networks: ": method.network}
        return "; ".join(
            label + ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(kind))
            for label, kind in kinds.items()
            if kind is not None
        )

    return {
        "methods": [
            {"name": m.name, "summary": m.summary, "settings": settings(m)}
            for m in METHODS.values()
        ],
        "attacks": [
            {"name": attack.name, "summary": attack.summary, "settings": group}
            for group, attacks in GROUPS.items()
            for attack in attacks
        ],
        "recipes": [
            {"name": name, "summary": path.read_text(encoding="utf-8").splitlines()[0][2:]}
            for name, path in bundled().items()
        ],
        "sources": [
            {"name": name, "summary": (source.__doc__ or "").splitlines()[0]}
            for name, source in SOURCES.items()
        ],
    }


def bundled() -> dict[str, Path]:
    """Names and paths of the recipes that come with the package."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def load_recipe(reference: str | Path) -> Recipe:
    """Read and check a recipe: a path to a TOML file, or the name of a bundled one.

    Raises:
        InputError: if the file cannot be read.
        SettingsError: if it is not TOML, or names something unknown.
    """
    path = bundled().get(str(reference), Path(reference))
    if not path.suffix and not path.exists():
        raise unknown("recipe", str(reference), bundled())
    try:
        if path.stat().st_size > MOST:
            raise SettingsError(f"recipe {path} has over {MOST:,} bytes; no recipe needs them.")
        text = path.read_text(encoding="utf-8")
        if DEEP.search(text):
            raise SettingsError(f"recipe {path} is nested too deeply.")
        values = tomllib.loads(text)
    except SettingsError:
        raise
    except OSError as error:
        raise InputError(f"cannot read recipe {path}: {error.strerror}.") from error
    except ValueError as error:
        raise SettingsError(f"recipe {path} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise SettingsError(f"recipe {path} is nested too deeply.") from error
    return check_recipe(values, path)


def check_recipe(values: Mapping[str, Any], path: Path) -> Recipe:
    """Check every key of a recipe before anything is loaded or run."""
    for key in values:
        if key not in SECTIONS:
            raise unknown(f"key in recipe {path}", key, SECTIONS)
    for key in TABLES:
        if not isinstance(values.get(key, {}), Mapping):
            raise SettingsError(f"recipe {path}: [{key}] must be a table of settings.")
    data, method = dict(values.get("data", {})), dict(values.get("method", {}))
    if "source" not in data:
        raise SettingsError(
            f"recipe {path}: [data] needs a source, one of {', '.join(sorted(SOURCES))}."
        )
    if not isinstance(data["source"], str) or data["source"] not in SOURCES:
        raise unknown("data source", str(data["source"]), SOURCES)
    source = SOURCES[data["source"]]
    hints = {k: v for k, v in get_type_hints(source).items() if k != "return"}
    options = {k: v for k, v in data.items() if k != "source"}
    check(options, hints, f"data source {data['source']!r}")
    for name, parameter in inspect.signature(source).parameters.items():
        if parameter.default is parameter.empty and name not in data:
            raise SettingsError(f"recipe {path}: data source {data['source']!r} needs {name!r}.")
    training, pretrain = (
        dict(values[key]) if key in values else None for key in ("training", "pretrain")
    )
    for table in (training, pretrain):
        training_of(table or {})
    if pretrain is not None and pretrain.get("mix"):
        raise SettingsError(f"recipe {path}: mix is for harmful rows, and [pretrain] has none.")
    if method:
        _check_method(method, training, path)
    model = dict(values.get("model", {"init": "identity"}))
    check(model, MODEL, f"[model] of {path}")
    kinds = [key for key in model if key in KINDS]
    if len(kinds) != 1:
        raise SettingsError(f"recipe {path}: [model] takes one of {', '.join(KINDS)}.")
    extra = [key for key in model if key not in KINDS]
    if extra and kinds[0] not in LIBRARIES:
        raise SettingsError(f"recipe {path}: [model] {extra[0]} goes with {', '.join(LIBRARIES)}.")
    audit = _check_audit(dict(values.get("audit", {})), training, path)
    trained = [_training_for(training, table) for table in (method, *audit.get("methods", ()))]
    if any(part is not None for part in (pretrain, *trained)) and kinds[0] not in (
        *LIBRARIES,
        "network",
    ):
        raise SettingsError(f"recipe {path}: training needs a network in [model].")
    if any(width < 1 for width in model.get("network", (1,))):
        raise SettingsError(f"recipe {path}: widths of the network must be at least 1.")
    for key in PATHS:
        _check_path(key, {**data, **model}.get(key), path)
    seed = values.get("seed", 0)
    for given in (seed, data.get("seed", 0)):
        if not fits(given, int) or not 0 <= given < 2**31:
            raise SettingsError(f"recipe {path}: seed={given!r}; expected 0 to 2**31 - 1.")
    name = values.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w+-][\w .+-]{0,99}", name):
        raise SettingsError(
            f"recipe {path}: name={name!r} is used for a folder; use at most 100 letters, digits, "
            "spaces and any of . _ + - (no leading dot)."
        )
    return Recipe(name, data, method, model, audit, pretrain, training, seed, path.parent)


def _check_path(key: str, given: Any, path: Path) -> None:
    """Refuse a path out of the recipe's folder or the data's: a recipe may come from anybody."""
    if isinstance(given, str) and (Path(given).is_absolute() or ".." in Path(given).parts):
        raise SettingsError(
            f"recipe {path}: {key}={given!r} leaves its folder. Use a path inside it; data that "
            "lies elsewhere is given with --data."
        )


def _training_for(
    training: Mapping[str, Any] | None, table: Mapping[str, Any]
) -> dict[str, Any] | None:
    """A recipe's [training] with a method's own over it; None where neither is given."""
    if training is None and "training" not in table:
        return None
    return {**(training or {}), **table.get("training", {})}


def _check_method(table: Mapping[str, Any], training: Mapping[str, Any] | None, path: Path) -> None:
    settings = dict(table)
    label = settings.pop("label", "")
    if not isinstance(label, str) or label in RESERVED:
        raise SettingsError(
            f"recipe {path}: label={label!r} of a method; expected text other than "
            f"{', '.join(RESERVED)}, which name the audit's controls."
        )
    if not isinstance(settings.pop("training", {}), Mapping):
        raise SettingsError(f"recipe {path}: training of a method must be a table of settings.")
    own = _training_for(training, table)
    training_of(own or {})
    get_method(settings.pop("name", "")).configure(settings, network=own is not None)


def _check_audit(
    audit: dict[str, Any], training: Mapping[str, Any] | None, path: Path
) -> dict[str, Any]:
    check(audit, AUDIT, f"[audit] of {path}")
    select(audit.get("attacks", "standard"))
    check_space(audit.get("space", {}))
    for key, values in audit.get("space", {}).items():
        if not isinstance(values, list) or not values:
            raise SettingsError(f"recipe {path}: [audit.space] {key} must be a list of values.")
    for key in ("seeds", "budget", "trials"):
        if audit.get(key, 1) < 1:
            raise SettingsError(f"recipe {path}: [audit] {key}={audit[key]}; need at least 1.")
    for table in audit.get("methods", ()):
        _check_method(table, training, path)
    return audit


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
