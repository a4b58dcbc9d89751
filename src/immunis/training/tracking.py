"""Training curves for TensorBoard, by default, and for Weights & Biases."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from immunis.core.errors import SettingsError


def need_wandb() -> Any:
    """Weights & Biases, or what to install."""
    try:
        import wandb
    except ImportError as error:
        raise SettingsError("wandb is not installed: pip install immunis[track]") from error
    return wandb


class Tracker:
    """Writes scalars by step. Does nothing without a folder.

    Args:
        folder: where TensorBoard's event files go.
        wandb: name of a Weights & Biases project to log to as well.
        settings: what the run is, for its page.
    """

    def __init__(self, folder: Path | None, wandb: str | None, settings: Mapping[str, Any]) -> None:
        self._writer: Any = None
        self._run: Any = None
        if folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(folder))
            except ImportError:  # curves are no reason to lose a run
                warnings.warn(f"TensorBoard is not installed: no curves in {folder}.", stacklevel=2)
        if wandb is not None:
            self._run = need_wandb().init(project=wandb, config=dict(settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write some scalars."""
        for name, value in values.items():
            if self._writer is not None:
                self._writer.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Flush and end the run."""
        if self._writer is not None:
            self._writer.close()
        if self._run is not None:
            self._run.finish()
