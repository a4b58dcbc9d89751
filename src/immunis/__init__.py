"""Make open-weight models hard to turn to harm, and measure how hard.

The public names are those of ``immunis.public``. They are imported when one is first used, so that
``immunis --help`` does not wait for torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from immunis.public import *  # noqa: F403

# Threads of torch that wait do not spin: on a busy machine spinning makes small work many times as
# slow. The OpenMP library reads this when torch is first imported; a value of yours stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    """Return a public name."""
    public = import_module("immunis.public")
    if not hasattr(public, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(public, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __getattr__("__all__")
