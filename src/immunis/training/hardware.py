"""Where a network is trained: device, processes, precision, compilation."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_type_hints

import torch

from immunis.core.errors import SettingsError
from immunis.core.lost_process import leave_processes, watch_processes
from immunis.core.settings import build, check, require_least

CLI_USED = "LT_CLI_USED"  # ``fabric run`` sets it, and these for its options
CLI = {
    "LT_ACCELERATOR": "device",
    "LT_DEVICES": "devices",
    "LT_NUM_NODES": "nodes",
    "LT_STRATEGY": "strategy",
    "LT_PRECISION": "precision",
}


@dataclass(frozen=True)
class Hardware:
    """Where a run takes place.

    Attributes:
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``; ``"mps"`` has no float64 and is for audits.
        devices: number of devices per machine; ``torchrun`` and ``fabric run`` override it.
        nodes: number of machines.
        strategy: ``"auto"``, ``"ddp"`` or ``"fsdp"``.
        precision: a precision that Fabric knows.
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
        require_least(self, 1, "devices", "nodes")

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
        """Start Lightning Fabric; raise ``SettingsError`` if this machine has not what is asked."""
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy

        device = self.device
        if device == "auto":  # never MPS: every Gram needs float64
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "mps":
            raise SettingsError("training needs float64, which MPS has not: use --device cpu.")
        strategy: Any = self.strategy
        if strategy == "ddp":  # buffers are equal everywhere: frozen, or averaged by the loop
            strategy = DDPStrategy(broadcast_buffers=False)
        if self.devices * self.nodes > 1:
            watch_processes()
        try:
            with _without_variables(CLI_USED, *CLI):  # Fabric would compare them with its arguments
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


@contextmanager
def _without_variables(*names: str) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


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
