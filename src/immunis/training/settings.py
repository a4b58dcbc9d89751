"""How and where a network is trained: settings, checked before anything is loaded."""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_type_hints

import torch

from immunis.core.distributed import leave, watch
from immunis.core.errors import SettingsError
from immunis.core.settings import check, require

Role = Literal["primary", "harmful"]
CLI_USED = "LT_CLI_USED"  # how ``fabric run`` tells that it started a process, and with what
CLI = {
    "LT_ACCELERATOR": "device",
    "LT_DEVICES": "devices",
    "LT_NUM_NODES": "nodes",
    "LT_STRATEGY": "strategy",
    "LT_PRECISION": "precision",
}


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    Attributes:
        layers: parameters to train, as module names (``"layer4"``) or patterns (``"*.bias"``);
            empty for the last stage, ``["*"]`` for all. The head is always trained.
        steps: optimizer steps.
        epochs: passes over the longer of the two tasks, in place of ``steps``.
        harmful_epochs: passes over the harmful task, which the paper's table counts, instead.
        batch: primary rows per step, over all processes together.
        harmful_batch: harmful rows per step; should exceed the number of features.
        accumulate: parts a step is run in, to save memory; the gradient is exact.
        optimizer: ``"sgd"`` with Nesterov momentum 0.9, or ``"adamw"``.
        rate: peak learning rate of the extractor.
        head_rate: of the head; as ``rate`` if left out.
        weight_decay: of the extractor.
        head_weight_decay: of the head.
        label_smoothing: of the primary loss.
        schedule: ``"cosine"`` to zero, or ``"constant"``.
        warmup: share of the steps over which the rate rises from zero.
        clip: largest gradient norm; 0 for any.
        batchnorm: ``"freeze"`` keeps running statistics and uses them; ``"update"`` takes
            batch statistics of the primary task.
        augment: zoom and flip primary and harmful images at random.
        mix: average harmful rows, and their labels, with one another at random, so that they are
            not learned by heart (``immunis.data.augment.mixed``).
        held_out: share of both tasks' training rows kept for early stopping.
        harmful_held_out: of the harmful task's, which are often few; as ``held_out`` if left out.
        evaluate: number of evaluations over the run.
        patience: evaluations without a better one before the run stops; 0 for never.
        tolerance: held-out primary score a checkpoint may lose.
        workers: processes that decode ahead, for data that is not in memory.
    """

    layers: Sequence[str] = ()
    steps: int | None = None
    epochs: float | None = None
    harmful_epochs: float | None = None
    batch: int = 256
    harmful_batch: int = 2048
    accumulate: int = 1
    optimizer: Literal["sgd", "adamw"] = "adamw"
    rate: float = 1e-3
    head_rate: float | None = None
    weight_decay: float = 0.0
    head_weight_decay: float = 2e-5
    label_smoothing: float = 0.1
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.05
    clip: float = 1.0
    batchnorm: Literal["freeze", "update"] = "freeze"
    augment: bool = False
    mix: bool = False
    held_out: float = 0.1
    harmful_held_out: float | None = None
    evaluate: int = 10
    patience: int = 0
    tolerance: float = 0.005
    workers: int = 0

    def __post_init__(self) -> None:
        """Check the types, the ranges and the combinations."""
        check(vars(self), get_type_hints(Training), "training")
        for name in ("batch", "harmful_batch", "accumulate", "evaluate"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: need >= 1")
        for name in ("steps", "epochs", "harmful_epochs", "rate", "head_rate"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, f"{name}={value}: need > 0")
        for name in (
            "weight_decay", "head_weight_decay", "clip", "patience", "tolerance", "workers",
        ):  # fmt: skip
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name}={value}: need >= 0")
        for name in ("label_smoothing", "warmup"):
            require(0 <= getattr(self, name) < 1, f"{name}={getattr(self, name)}: need 0 to 1")
        for name in ("held_out", "harmful_held_out"):
            share = getattr(self, name)
            require(share is None or 0 < share < 1, f"{name}={share}: need 0 < {name} < 1")
        lengths = [n for n in ("steps", "epochs", "harmful_epochs") if getattr(self, n) is not None]
        require(len(lengths) <= 1, f"{' and '.join(lengths)} exclude each other: give one")
        require(
            self.accumulate == 1 or self.batchnorm == "freeze",
            "accumulate runs every part twice, which would count twice in BatchNorm statistics: "
            "use batchnorm='freeze' with it",
        )

    def share_held_out(self, role: Role) -> tuple[str, float]:
        """Which setting says what share of a task's rows is kept for early stopping, and that."""
        if role == "primary" or self.harmful_held_out is None:
            return "held_out", self.held_out
        return "harmful_held_out", self.harmful_held_out

    def length(self, primary: int, harmful: int) -> int:
        """Number of steps, where an epoch of each task has that many (0 for no task)."""
        if self.steps is not None:
            return self.steps
        if self.harmful_epochs is not None:
            require(harmful > 0, "harmful_epochs needs a harmful task; use epochs or steps")
            return max(1, round(self.harmful_epochs * harmful))
        return max(1, round((1.0 if self.epochs is None else self.epochs) * max(primary, harmful)))

    def factor(self, step: int, steps: int) -> float:
        """Share of the peak learning rate at a step."""
        rise = self.warmup * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


@dataclass(frozen=True)
class Hardware:
    """Where a run takes place.

    Attributes:
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``; ``"mps"`` has no float64 and is for audits.
        devices: how many; under ``torchrun`` its number counts, and under ``fabric run`` whatever
            that was given.
        nodes: machines.
        strategy: ``"auto"``, ``"ddp"`` or ``"fsdp"``.
        precision: ``"32-true"``, ``"bf16-mixed"`` or another that Fabric knows.
        compile: run the model through ``torch.compile``.
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    devices: int = 1
    nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true", "bf16-true"] = "32-true"
    compile: bool = False

    def __post_init__(self) -> None:
        """Check the types and the ranges."""
        check(vars(self), get_type_hints(Hardware), "hardware")
        for name in ("devices", "nodes"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: need >= 1")

    def as_launched(self) -> Hardware:
        """These settings, but for what ``fabric run`` or ``torchrun`` was given, if it started us.

        Raises:
            SettingsError: for a number of devices that is none.
        """
        if not int(os.environ.get(CLI_USED, "0")):
            return self._under_torchrun()
        found = {own: os.environ[name] for name, own in CLI.items() if name in os.environ}
        if found.get("device") == "gpu":
            found["device"] = "cuda"
        numbers = ("devices", "nodes")
        if wrong := [own for own in numbers if not found.get(own, "1").isdigit()]:
            raise SettingsError(f"fabric run: {wrong[0]} is {found[wrong[0]]!r}; give a number.")
        return hardware_of(
            {**asdict(self), **{k: int(v) if k in numbers else v for k, v in found.items()}}
        )

    def _under_torchrun(self) -> Hardware:
        """These settings with torchrun's number of processes, if it started us."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if "TORCHELASTIC_RUN_ID" not in os.environ or count == 1:
            return self
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        strategy = "ddp" if self.strategy == "auto" else self.strategy
        return replace(self, devices=here, nodes=count // here, strategy=strategy)

    def fabric(self) -> Any:
        """Start Lightning Fabric, with these settings and no others.

        Raises:
            SettingsError: where this machine cannot meet the request.
        """
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy

        device = self.device
        if device == "auto":  # MPS has no float64, which every Gram needs
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "mps":
            raise SettingsError("training needs float64, which MPS has not: use --device cpu.")
        strategy: Any = self.strategy
        if strategy == "ddp":  # buffers are equal everywhere: frozen, or updated on one device
            strategy = DDPStrategy(broadcast_buffers=False)
        if self.devices * self.nodes > 1:
            watch()
        try:
            with _without(CLI_USED, *CLI):  # by which Fabric would refuse what differs from them
                fabric = Fabric(
                    accelerator=device,
                    devices=self.devices,
                    num_nodes=self.nodes,
                    strategy=strategy,
                    precision=self.precision,
                )
                fabric.launch()
            atexit.register(leave)  # before the interpreter tears sockets down in any order
        except (ValueError, RuntimeError) as error:  # Fabric's own words for what is missing
            raise SettingsError(f"{self}: {error}") from error
        return fabric


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Hide environment variables."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def training_of(values: Mapping[str, Any]) -> Training:
    """Build training settings, refusing unknown keys with a suggestion."""
    check(values, get_type_hints(Training), "training")
    return Training(**values)


def hardware_of(values: Mapping[str, Any]) -> Hardware:
    """Build hardware settings, refusing unknown keys with a suggestion."""
    check(values, get_type_hints(Hardware), "hardware")
    return Hardware(**values)


def device_of(name: str) -> str:
    """The device meant by a name; by ``"auto"`` the accelerator there is, or else the CPU.

    Raises:
        SettingsError: for one that cannot be used here.
    """
    if name == "auto":
        usable = {"cuda": torch.cuda, "mps": torch.backends.mps}
        return next((kind for kind, of in usable.items() if of.is_available()), "cpu")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device {name!r} cannot be used here: {reason}") from error
    return name
