"""Training curves for TensorBoard and Weights & Biases, by Lightning's loggers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from immunis.core.errors import SettingsError


def need_wandb() -> None:
    """Raise ``SettingsError`` if Weights & Biases is not installed."""
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise SettingsError("wandb is not installed: pip install immunis[track]") from error


def open_loggers(folder: Path | None, wandb: str | None, settings: Mapping[str, Any]) -> list[Any]:
    """Return loggers of scalars: TensorBoard into a folder, and a Weights & Biases project."""
    loggers: list[Any] = []
    if folder is not None:
        try:
            from lightning.fabric.loggers import TensorBoardLogger

            logger = TensorBoardLogger(folder, name="", version="")
            logger.experiment.flush()  # opens the file, or says that TensorBoard is missing
            loggers.append(logger)
        except ImportError:  # no reason to stop a run
            warnings.warn(f"TensorBoard is not installed: no curves in {folder}.", stacklevel=2)
    if wandb is not None:
        need_wandb()
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(project=wandb, config=dict(settings)))
    return loggers


def log(loggers: Sequence[Any], step: int, values: Mapping[str, float]) -> None:
    """Write scalars of a step to every logger."""
    for logger in loggers:
        logger.log_metrics(values, step)


def close_loggers(loggers: Sequence[Any]) -> None:
    """Flush and close every logger."""
    for logger in loggers:
        logger.finalize("success")
        if hasattr(logger.experiment, "finish"):  # a run of Weights & Biases
            logger.experiment.finish()
