"""Training curves for TensorBoard (by default, where it is installed) and Weights & Biases."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from immunis.errors import SettingsError


class Tracker:
    """Writes scalars by step. Does nothing without a folder.

    Args:
        folder: where TensorBoard's event files go; TensorBoard is an extra (``track``).
        wandb: name of a Weights & Biases project to log to as well.
        settings: what the run is, for its page.
    """

    def __init__(self, folder: Path | None, wandb: str | None, settings: Mapping[str, Any]) -> None:
        self._writer: Any = None
        self._run: Any = None
        if folder is not None and importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))
        if wandb is not None:
            try:
                import wandb as client
            except ImportError as error:
                raise SettingsError("wandb is not installed: pip install immunis[track]") from error
            self._run = client.init(project=wandb, config=dict(settings))

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
