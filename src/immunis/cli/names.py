"""Names that the shell completes, read from file names: torch takes seconds to import."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PRESETS = ("quick", "standard", "full")


def recipes() -> list[str]:
    """Return the names of the bundled recipes."""
    return sorted(path.stem for path in (PACKAGE / "recipes").glob("*.toml"))


def attacks() -> list[str]:
    """Return the names of all attacks: each is a file in the folder of its family."""
    files = (PACKAGE / "attacks").glob("*/*.py")
    return sorted(path.stem for path in files if path.stem != "__init__")
