"""How and where a network is trained: settings, checked before anything is loaded."""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_type_hints

import torch
from torch import nn

from immunis.core.distributed import leave_processes, watch_processes
from immunis.core.errors import SettingsError
from immunis.core.settings import MOST, build, check, require, require_least, require_most
from immunis.core.state import variables
from immunis.theory.definition import TOLERANCE

CLI_USED = "LT_CLI_USED"  # ``fabric run`` sets it, and these for its options
CLI = {
    "LT_ACCELERATOR": "device",
    "LT_DEVICES": "devices",
    "LT_NUM_NODES": "nodes",
    "LT_STRATEGY": "strategy",
    "LT_PRECISION": "precision",
}


LENGTHS = "steps", "epochs", "harmful_epochs"


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
            batch statistics of the primary task; ``"joint"`` those of both tasks' rows together,
            so that a defence cannot live in a difference of statistics that deployment removes.
        augment: zoom and flip primary and harmful images at random.
        mix: average harmful rows, and their labels, with one another at random, so that they are
            not memorised (``immunis.data.transforms.mixed``).
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
    batchnorm: Literal["freeze", "update", "joint"] = "freeze"
    augment: bool = False
    mix: bool = False
    held_out: float = 0.1
    harmful_held_out: float | None = None
    evaluate: int = 10
    patience: int = 0
    tolerance: float = TOLERANCE
    workers: int = 0

    def __post_init__(self) -> None:
        """Check the types, the ranges and the combinations."""
        check(vars(self), get_type_hints(Training), "training")
        require_least(self, 1, "batch", "harmful_batch", "accumulate", "evaluate")
        require_least(self, 0, *LENGTHS, "rate", "head_rate", above=True)
        require_most(self, MOST["epochs"], "epochs", "harmful_epochs")  # may be fractions
        require_least(self, 0, "weight_decay", "head_weight_decay", "clip", "tolerance")
        require_least(self, 0, "label_smoothing", "warmup", "patience", "workers")
        require_least(self, 0, "held_out", "harmful_held_out", above=True)
        for name in ("label_smoothing", "warmup", "held_out", "harmful_held_out"):
            value = getattr(self, name)
            require(value is None or value < 1, f"{name}={value}: expected a number below 1")
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        require(len(given) <= 1, f"{' and '.join(given)} exclude each other: give one")
        require(
            self.accumulate == 1 or self.batchnorm == "freeze",
            "accumulate runs every part twice, also for BatchNorm: use batchnorm='freeze' with it",
        )

    def length(self, primary: int, harmful: int = 0) -> int:
        """Return the number of steps, from the steps in an epoch of each task (0 for no task)."""
        if self.steps is not None:
            return self.steps
        if self.harmful_epochs is not None:
            require(harmful > 0, "harmful_epochs needs a harmful task; use epochs or steps")
            return max(1, round(self.harmful_epochs * harmful))
        return max(1, round((1.0 if self.epochs is None else self.epochs) * max(primary, harmful)))

    @property
    def peaks(self) -> tuple[float, float]:
        """Return the peak learning rates of extractor and head."""
        return self.rate, self.rate if self.head_rate is None else self.head_rate

    def factor(self, step: int, steps: int) -> float:
        """Return the share of the peak learning rate at a step."""
        rise = self.warmup * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


def training_of(values: Mapping[str, Any]) -> Training:
    """Return training settings; refuse unknown keys with a suggestion."""
    return build(Training, values, "training")


@dataclass(frozen=True)
class Hardware:
    """Where a run takes place.

    Attributes:
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``: CUDA where there is one. A copy of the model
            trains there; the model stays where it is, and the result comes back to it. ``"mps"``
            has no float64 and is for audits.
        devices: number of devices per machine; ``torchrun`` and ``fabric run`` override it.
        nodes: number of machines.
        strategy: ``"auto"``, ``"ddp"`` or ``"fsdp"``.
        precision: a precision that Fabric knows.
        compile: run the model through ``torch.compile``.
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true", "bf16-true"] = "32-true"
    compile: bool = False

    def __post_init__(self) -> None:
        """Check the types and the ranges."""
        check(vars(self), get_type_hints(Hardware), "hardware")
        require_least(self, 1, "devices", "nodes")

    @property
    def kind(self) -> str:
        """Return the device that trains. ``"auto"`` is never MPS: every Gram needs float64."""
        found = "cuda" if torch.cuda.is_available() else "cpu"
        return found if self.device == "auto" else self.device

    def as_launched(self) -> Hardware:
        """Return these settings, replaced by those of the launcher that started this process."""
        if int(os.environ.get(CLI_USED, "0")):
            found: dict[str, Any] = {o: os.environ[n] for n, o in CLI.items() if n in os.environ}
            if found.get("device") == "gpu":
                found["device"] = "cuda"
            for name in found.keys() & {"devices", "nodes"}:
                if not found[name].isdigit():
                    raise SettingsError(f"fabric run: {name} is {found[name]!r}; give a number.")
                found[name] = int(found[name])
            return hardware_of({**asdict(self), **found})
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if "TORCHELASTIC_RUN_ID" not in os.environ or count == 1:
            return self
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        strategy = "ddp" if self.strategy == "auto" else self.strategy
        return replace(self, devices=here, nodes=count // here, strategy=strategy)

    def fabric(self) -> Any:
        """Start Lightning Fabric; raise ``SettingsError`` if this machine lacks what is asked."""
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy

        device = self.kind
        if device == "mps":
            raise SettingsError("training needs float64, which MPS lacks: use --device cpu.")
        several = self.devices * self.nodes > 1
        strategy: Any = self.strategy if several else "auto"
        if strategy == "ddp":  # buffers are equal everywhere: frozen, or averaged by the loop
            strategy = DDPStrategy(broadcast_buffers=False)
        elif strategy == "fsdp" and device == "cpu":
            strategy = _sharded_on_cpus()
        if several:
            watch_processes()
        try:
            with variables(
                **dict.fromkeys((CLI_USED, *CLI))
            ):  # Fabric would compare them with its arguments
                fabric = Fabric(
                    accelerator=device,
                    devices=self.devices,
                    num_nodes=self.nodes,
                    strategy=strategy,
                    precision=self.precision,
                )
                fabric.launch()
            atexit.register(leave_processes)  # before the interpreter closes sockets
        except (ValueError, RuntimeError) as error:  # Fabric says what is missing
            raise SettingsError(f"{self}: {error}") from error
        return fabric


def _sharded_on_cpus() -> Any:
    """Return a strategy that shards a model over CPUs, which Fabric's own refuses."""
    from lightning.fabric.strategies import FSDPStrategy
    from torch.distributed.fsdp import FullyShardedDataParallel

    class Sharded(FSDPStrategy):
        def setup_module(self, module: nn.Module) -> nn.Module:
            return FullyShardedDataParallel(
                module,
                device_id=torch.device("cpu"),
                mixed_precision=self.mixed_precision_config,
                **self._fsdp_kwargs,
            )

    return Sharded()


def hardware_of(values: Mapping[str, Any]) -> Hardware:
    """Return hardware settings; refuse unknown keys with a suggestion."""
    return build(Hardware, values, "hardware")


def device_of(name: str) -> str:
    """Return a device that works here; ``"auto"`` means the accelerator if any, else the CPU."""
    if name == "auto":
        usable = {"cuda": torch.cuda, "mps": torch.backends.mps}
        return next((kind for kind, of in usable.items() if of.is_available()), "cpu")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device {name!r} cannot be used here: {reason}") from error
    return name
