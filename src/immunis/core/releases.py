"""Files of one release (weights, record, card): all of them or none, with their checksums.

They are staged, then moved into place together, with a ``SHA256SUMS`` that ``sha256sum -c``
understands. A mark tells which folders were made here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from immunis.core.errors import InputError, OutputError
from immunis.core.files import (
    SCRAPS,
    make_folder,
    read_text,
    reported,
    sync,
    write_bytes,
    write_text,
)

SUMS = "SHA256SUMS"
STAGE = ".immunis-staged"
MARK = ".immunis"  # in a stage, or features: it tells that the folder is ours
SUM = re.compile(r"[0-9a-f]{64}  .+")  # a line of SHA256SUMS


def renewed_folder(path: Path) -> Path:
    """Create an empty folder for one run, in place of what a killed one left under its name.

    Raises:
        OutputError: if something of that name was not made here; it is left alone.
    """
    if os.path.lexists(path):
        folder = path.is_dir() and not path.is_symlink()
        if not folder or not ours({each.name for each in path.iterdir()}):
            raise foreign(path)
        with reported(f"write to {path.parent}"):
            shutil.rmtree(path)
    write_bytes(make_folder(path) / MARK)
    return path


def release(folder: str | Path, files: Mapping[str, bytes | str]) -> list[Path]:
    """Write several files, all of them or none, with their checksums; return their paths.

    A name may have folders in it ("1_Pooling/config.json"). The files are staged first. Once all
    are staged the release counts: if it is cut short after that, the next call of ``settle``
    finishes it.
    """
    place = make_folder(folder)
    settle(place)
    _check_targets(place, [*files, SUMS])
    sums, stage = _sums(place), place / STAGE
    with reported(f"write to {place}"):
        stage.mkdir()
    try:
        write_bytes(stage / MARK)
        for name, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            sums[name] = hashlib.sha256(raw).hexdigest()
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(stage / name, raw)
        lines = "".join(f"{value}  {name}\n" for name, value in sorted(sums.items()))
        write_text(stage / SUMS, lines)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    settle(place)
    return [place / name for name in files]


def settle(folder: Path) -> None:
    """Finish a release that was cut short after all was staged; drop one that was not.

    Raises:
        OutputError: if what bears that name was not made by ``release``; it is left alone.
    """
    stage = folder / STAGE
    if not os.path.lexists(stage):
        return
    if not stage.is_dir() or stage.is_symlink():
        raise foreign(stage)
    with reported(f"finish writing to {folder}"):
        names = {str(p.relative_to(stage)) for p in stage.rglob("*") if not p.is_dir()}
        if not ours(names):
            raise foreign(stage)
        if SUMS in names:
            _check_targets(folder, names)
            for name in [*sorted(names - {MARK, SUMS}), SUMS]:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(stage / name, folder / name)
            sync(folder)
        shutil.rmtree(stage)


def _check_targets(folder: Path, names: Iterable[str]) -> None:
    """Raise ``OutputError`` for a folder in the place of a file, or a link out of the folder."""
    for path in (folder / name for name in names):
        if not path.parent.resolve().is_relative_to(folder.resolve()):
            raise OutputError(f"{path.parent} is a link out of {folder}: remove it.")
        if path.is_dir() and not path.is_symlink():
            raise OutputError(f"{path} is a folder; expected a file or nothing there: move it.")
        if path.parent.exists() and not path.parent.is_dir():
            raise OutputError(f"{path.parent} is a file; expected a folder: move it.")


def ours(names: set[str]) -> bool:
    """Return True if a folder of these files was made here: before the mark it holds scraps."""
    return MARK in names or all(map(SCRAPS.fullmatch, names))


def foreign(path: Path) -> OutputError:
    """Return the error for what bears one of our names and was not made here."""
    return OutputError(f"{path} was not written by immunis: move it, or choose another folder.")


def released(folder: Path) -> dict[str, str]:
    """Return the checksums of the files of a release by name; empty where there is none.

    Raises:
        InputError: if they name a file outside the folder.
    """
    found = _sums(folder)
    if outside := [n for n in found if Path(n).is_absolute() or ".." in Path(n).parts]:
        raise InputError(f"{folder / SUMS} names {outside[0]!r}, which is outside the folder.")
    return found


def _sums(folder: Path) -> dict[str, str]:
    """Return the checksums that a folder already holds, by file name."""
    path = folder / SUMS
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise foreign(path) from error
    if not all(map(SUM.fullmatch, lines)):
        raise foreign(path)
    return {name: value for value, name in (line.split("  ", 1) for line in lines)}
