"""Where files are found: data, files of installed packages, and what may be downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from immunis.core.errors import InputError

PACKAGE = "package:"  # prefix of a path inside an installed package
DOWNLOAD = "IMMUNIS_DOWNLOAD"  # 1 lets libraries fetch what is not here


def find_data(folder: str | Path | None, how: str, *names: str) -> Path:
    """Return the first of ``names`` in ``folder``, or in ``$IMMUNIS_DATA`` or ``~/.cache/immunis``.

    The error names the places searched and ``how`` to get the data.
    """
    searched: list[str] = []
    for place in _data_folders(folder):
        for path in (place / name for name in names):
            if path.is_file() or path.is_dir():
                return path
            searched.append(str(path))
    raise InputError(f"data not found; looked for {', '.join(searched)}. {how}")


def _data_folders(folder: str | Path | None) -> Iterator[Path]:
    given = os.environ.get("IMMUNIS_DATA") if folder is None else folder
    if given:
        yield Path(given)
    if folder is None:
        yield cache_folder()


def packaged(reference: str) -> Path | None:
    """Return the path that ``package:NAME/PATH`` means; None for any other text.

    The package is found, not imported.

    >>> packaged("package:immunis/core/places.py").name
    'places.py'

    Raises:
        InputError: if the package is not installed, or does not hold the path.
    """
    if not reference.startswith(PACKAGE):
        return None
    name, _, inside = reference.removeprefix(PACKAGE).partition("/")
    found = find_spec(name) if name.isidentifier() else None
    places = [] if found is None else (found.submodule_search_locations or [])
    if not places:
        pip = f"pip install {name.replace('_', '-')}"
        raise InputError(f"{reference}: no installed package is called {name!r}. Try: {pip}")
    path = Path(places[0], inside)
    leaves = ".." in Path(inside).parts or not path.is_relative_to(places[0])
    if leaves or not path.exists():
        raise InputError(f"{reference}: the package {name} does not hold {inside or 'a folder'!r}.")
    return path


def may_download() -> bool:
    """Return True if the user lets libraries fetch files that are not on this machine."""
    return os.environ.get(DOWNLOAD, "") == "1"


def absent(what: str, url: str, remedy: str) -> InputError:
    """Return the error for a file that is not on this machine: what to get, where to put it."""
    return InputError(
        f"{what}: not on this machine, and nothing is downloaded. Get {url} and {remedy}; or give "
        f"a local file; or set {DOWNLOAD}=1 to let it be downloaded."
    )


def cache_folder() -> Path:
    """Return ``~/.cache/immunis``.

    Raises:
        InputError: for a user without a home folder.
    """
    try:
        return Path.home() / ".cache" / "immunis"
    except RuntimeError as error:
        raise InputError(
            "this user has no home folder, where data is looked for and kept. Set HOME, or give "
            "--data (or IMMUNIS_DATA), and IMMUNIS_CACHE for images."
        ) from error
