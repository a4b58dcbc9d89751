"""Paths in a recipe: they start in its folder, and lead out of it only if the user permits it.

A recipe may come from anybody. So neither ``..``, nor a link, nor a model's name that is a folder
somewhere else reaches files that the recipe's folder does not hold.
"""

from __future__ import annotations

from pathlib import Path

from immunis.core.errors import SettingsError
from immunis.core.places import PACKAGE, packaged
from immunis.models.zoo import LIBRARIES

TASKS = ("primary", "harmful", "attacker", "transfer")
FILES = ("file", "test", "groups")  # of a task of text
PATHS = (*TASKS, *FILES, "folder", "weights", "checkpoint", "tokenizer", *LIBRARIES)  # or folders
LOCAL, TIMM = "local-dir:", "timm:"  # prefixes of a model's folder, of a folder with images
DROPPED = {ord(blank): None for blank in "\t\r\n"}  # by libraries, wherever they stand


def check_path(key: str, given: object, where: str) -> None:
    """Raise ``SettingsError`` for a path out of its folder, whatever prefix (``timm:``) it has."""
    plain = "".join(given.split()) if isinstance(given, str) else ""
    for path in map(Path, plain.split(":")):
        if path.is_absolute() or ".." in path.parts:
            raise _outside(key, given, where)


def resolved(key: str, given: str, folder: Path, outside: bool) -> Path:
    """Return the path that a recipe's text means, without its prefix.

    Raises:
        SettingsError: if it leads out of the folder, by a link too, and ``outside`` is False.
    """
    if given.startswith(PACKAGE) and (path := packaged(given)) is not None:
        return path
    plain = given.translate(DROPPED).strip()
    prefix = next((word for word in (LOCAL, TIMM) if plain.lower().startswith(word)), "")
    path = folder / plain[len(prefix) :]
    if outside:
        return path
    check_path(key, given, str(folder))
    inner = path.rglob("*") if key in LIBRARIES and path.is_dir() else ()
    for part in (path, *inner):
        if not part.resolve().is_relative_to(folder.resolve()):
            raise _outside(key, given, str(folder))
    return path


def model_name(library: str, given: str, folder: Path, outside: bool) -> str:
    """Return what a library is asked for: a folder of the recipe's, or the name of a model."""
    plain = given.translate(DROPPED).strip()
    if library == "timm" and plain.lower().startswith(LOCAL):
        return f"{LOCAL}{resolved(library, plain, folder, outside)}"
    if library != "transformers":
        return plain
    path = resolved(library, plain, folder, outside)
    if path.exists():
        return str(path)
    if Path(plain).exists() and not outside:  # the library would take it for the model
        raise _outside(library, given, str(folder))
    return plain


def _outside(key: str, given: object, where: str) -> SettingsError:
    return SettingsError(
        f"{where}: {key}={given!r} leaves its folder. Use a path inside it, or give the "
        "folder of data with --data. If you trust the recipe, add --allow-outside."
    )
