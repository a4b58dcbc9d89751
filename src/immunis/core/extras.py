"""Libraries of the extras, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from immunis.core.errors import SettingsError

EXTRAS = {  # which extra installs a library
    "timm": "vision",
    "torchvision": "vision",
    "transformers": "text",
    "peft": "lora",
    "optuna": "search",
    "pandas": "openml",
    "huggingface_hub": "hub",
    "ray": "cluster",
    "wandb": "track",
}


def need(module: str) -> Any:
    """Return a module of a library that an extra installs, such as ``"timm.data"``.

    Raises:
        SettingsError: if it is not installed, with the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        command = f"pip install 'immunis[{EXTRAS[library]}]'"
        raise SettingsError(f"{library} is not installed: {command}") from error
