"""Files that are complete or absent: atomic writes, checksums, one writer per folder.

Files that immunis reads again (records, finished jobs, checkpoints, kept networks) carry their
SHA-256 inside. Files of one release (weights, record, card) are staged, then moved into place
together, with a ``SHA256SUMS`` that ``sha256sum -c`` understands.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from immunis.core.distributed import first
from immunis.core.errors import InputError, OutputError

SUMS = "SHA256SUMS"
STAGE = ".staged"
LOCK = ".lock"
SCRAP, OLD = ".immunis-", 3600.0  # prefix of unfinished files, and seconds until they are removed


def make_folder(path: str | Path) -> Path:
    """Create an output folder and prove that it can be written to."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a ValueError: the path holds a NUL character
        raise OutputError(
            f"cannot write to output folder {folder}: {getattr(error, 'strerror', error)}. "
            "Choose another with --output, or change its permissions."
        ) from error
    return folder


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Raise ``OutputError`` ("cannot ...") in place of an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot {what}: {error.strerror}.") from error


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file under a temporary name, then rename it."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | Path, *parts: bytes | memoryview) -> Path:
    """Write a file, given in one part or several, under a temporary name, then rename it."""
    path = Path(path)
    with _reported(f"write {path}"):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=SCRAP)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
            _sync(path.parent)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return path


def _sync(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain JSON values, in their order."""
    text = json.dumps(values, indent=1, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def sealed(values: Mapping[str, Any]) -> str:
    """Return plain JSON values as text, with their checksum."""
    whole = {**values, "checksum": checksum(values)}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def unsealed(path: str | Path, what: str) -> dict[str, Any]:
    """Read values that ``sealed`` made text of; a file without a checksum is read too.

    Raises:
        InputError: if the file is missing, damaged, or not a JSON object.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); expected a {what}.") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}; it is not an immunis {what}.")
    expected = values.pop("checksum", None)
    if expected is not None and expected != checksum(values):
        raise InputError(
            f"{what} {path} does not match its checksum: it was damaged or edited after it was "
            "written. Fetch it again, or make it again."
        )
    return values


def check_stored(file: BinaryIO) -> None:
    """Raise ``ValueError`` for a PyTorch file with packed entries: ``torch.save`` packs none."""
    if file.read(4) == b"PK\3\4":  # torch.load reads these as archives, and no others
        size = file.seek(0, os.SEEK_END)
        try:
            entries = zipfile.ZipFile(file).infolist()
        except zipfile.BadZipFile as error:
            raise ValueError(f"its archive is damaged ({error})") from error
        packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if packed or sum(entry.file_size for entry in entries) > size:
            raise ValueError("its entries are packed, which torch.save never does: a bomb?")
    file.seek(0)


def release(folder: str | Path, files: Mapping[str, bytes | str]) -> list[Path]:
    """Write several files, all of them or none, with their checksums; return their paths.

    They are staged first. Once all are staged the release counts: if it is cut short after that,
    the next call of ``settle`` finishes it.
    """
    place = make_folder(folder)
    settle(place)
    stage = place / STAGE
    try:
        with _reported(f"write to {place}"):
            stage.mkdir()
        sums = _sums(place)
        for name, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            sums[name] = hashlib.sha256(raw).hexdigest()
            write_bytes(stage / name, raw)
        lines = "".join(f"{value}  {name}\n" for name, value in sorted(sums.items()))
        write_text(stage / SUMS, lines)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    settle(place)
    return [place / name for name in files]


def publish(path: str | Path, text: str) -> Path:
    """Write one text file; in the folder of a release, update its checksum too."""
    path = Path(path)
    if not (path.parent / SUMS).exists():
        return write_text(path, text)
    with hold(path.parent) as folder:
        return release(folder, {path.name: text})[0]


def settle(folder: Path) -> None:
    """Finish a release that was cut short after all was staged; drop one that was not."""
    stage = folder / STAGE
    if not stage.is_dir() or stage.is_symlink():
        return
    with _reported(f"finish writing to {folder}"):
        if (stage / SUMS).exists():
            for path in [*(p for p in stage.iterdir() if p.name != SUMS), stage / SUMS]:
                os.replace(path, folder / path.name)
            _sync(folder)
        shutil.rmtree(stage)


def _sums(folder: Path) -> dict[str, str]:
    """Return the checksums that a folder already holds, by file name."""
    with suppress(OSError, ValueError):
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        return {name: value for value, name in (line.split("  ", 1) for line in lines)}
    return {}


@contextmanager
def hold(path: str | Path) -> Iterator[Path]:
    """Be the only process that writes to a folder; settle and clean up what an earlier one left.

    The operating system holds the lock, so it ends with its process, however that ends. In a
    distributed run the first process holds it. A folder made for the lock goes if it stays empty.

    Raises:
        OutputError: if another process holds the folder; the message names that process.
    """
    folder = Path(path)
    if not first():
        yield folder
        return
    made = [p for p in (folder, *folder.parents) if not os.path.exists(p)]
    lock, note = FileLock(make_folder(folder) / LOCK), folder / LOCK
    with _reported(f"lock output folder {folder}"):
        try:
            lock.acquire(timeout=0.2)  # longer than a holder needs between unlink and release
        except Timeout as error:
            owner = "another process"
            with suppress(OSError):
                owner = note.read_text(errors="replace")[:200].strip() or owner
            raise OutputError(
                f"output folder {folder} is in use by {owner}. Wait until it ends, or choose "
                "another folder with --output."
            ) from error
        note.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    try:
        settle(folder)
        for scrap in folder.rglob(f"{SCRAP}*"):  # of processes that were killed while writing
            with suppress(OSError):
                if scrap.stat().st_mtime < time.time() - OLD:
                    scrap.unlink()
        yield folder
    finally:
        note.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # not empty: it holds results
            for place in made:
                place.rmdir()
