"""Files that are whole or not there: atomic writes, checksums, one writer for each folder.

What immunis reads again (records, finished jobs, checkpoints, kept networks) carries its
SHA-256 inside. What it hands out together (weights, record, card) is staged, then moved into
place as one, with a ``SHA256SUMS`` that ``sha256sum -c`` understands.
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

from immunis.core.distributed import first
from immunis.core.errors import InputError, OutputError

SUMS = "SHA256SUMS"
STAGE = ".staged"
LOCK = ".lock"
SCRAP, OLD = ".immunis-", 3600.0  # prefix of unfinished files, and seconds until they are swept


def check_folder(path: str | Path) -> Path:
    """Refuse an output folder that could not be written to, before work begins; make nothing."""
    folder = Path(path)
    if "\0" in str(path):
        raise OutputError(f"output folder {str(path)!r} holds a NUL character.")
    try:
        place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        good = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    except OSError as error:
        raise OutputError(f"cannot use {folder} as output folder: {error.strerror}.") from error
    if not good:
        raise OutputError(
            f"cannot write to output folder {folder}: {place} is not a folder this user may write "
            "to. Choose another with --output, or change its permissions."
        )
    return folder


def make_folder(path: str | Path) -> Path:
    """Create an output folder and prove that it can be written to."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to output folder {folder}: {error.strerror}. Choose another with "
            "--output, or change its permissions."
        ) from error
    return folder


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file under a temporary name, then rename it into place."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | Path, *parts: bytes | memoryview) -> Path:
    """Write a file, given in one part or several, under a temporary name, then rename it."""
    path = Path(path)
    try:
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
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}.") from error
    return path


def _sync(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 of plain JSON values, in their order."""
    text = json.dumps(values, indent=1, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def sealed(values: Mapping[str, Any]) -> str:
    """Plain JSON values as text, with their checksum."""
    whole = {**values, "checksum": checksum(values)}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def unsealed(path: str | Path, what: str) -> dict[str, Any]:
    """Read values that were written sealed; those without a checksum come as they are.

    Raises:
        InputError: for a file that is missing, damaged, or no JSON object.
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
    """Refuse a PyTorch file with packed entries: ``torch.save`` packs none, a bomb does.

    Raises:
        ValueError: where entries are packed, or claim more than the file holds.
    """
    if file.read(4) == b"PK\3\4":  # what torch.load goes by; older files are no archives
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
    """Write several files as one, all of them or none, with their checksums; return the paths.

    They are written beside their places first; from the moment all are there, they count, and
    what is cut short after that is finished by the next one to ``settle`` the folder.
    """
    place = make_folder(folder)
    settle(place)
    stage = place / STAGE
    try:
        stage.mkdir()
        sums = _sums(place)
        for name, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            sums[name] = hashlib.sha256(raw).hexdigest()
            write_bytes(stage / name, raw)
        lines = "".join(f"{value}  {name}\n" for name, value in sorted(sums.items()))
        write_text(stage / SUMS, lines)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        if isinstance(error, OSError):
            raise OutputError(f"cannot write to {place}: {error.strerror}.") from error
        raise
    settle(place)
    return [place / name for name in files]


def publish(path: str | Path, text: str) -> Path:
    """Write one text file; where it lies in the folder of a run, its checksum there stays true."""
    path = Path(path)
    if not (path.parent / SUMS).exists():
        return write_text(path, text)
    with hold(path.parent) as folder:
        return release(folder, {path.name: text})[0]


def settle(folder: Path) -> None:
    """Finish a release that was cut short when all was staged, or drop one that was not."""
    stage = folder / STAGE
    if not stage.is_dir() or stage.is_symlink():
        return
    try:
        if (stage / SUMS).exists():
            for path in [*(p for p in stage.iterdir() if p.name != SUMS), stage / SUMS]:
                os.replace(path, folder / path.name)
            _sync(folder)
        shutil.rmtree(stage)
    except OSError as error:
        raise OutputError(f"cannot finish writing to {folder}: {error.strerror}.") from error


def _sums(folder: Path) -> dict[str, str]:
    """Checksums of what is in a folder already, by name."""
    with suppress(OSError, ValueError):
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        return {name: value for value, name in (line.split("  ", 1) for line in lines)}
    return {}


def _sweep(folder: Path) -> None:
    """Remove unfinished files of processes that were killed while they wrote them."""
    for path in folder.rglob(f"{SCRAP}*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - OLD:
                path.unlink()


@contextmanager
def hold(path: str | Path) -> Iterator[Path]:
    """Be the only process that writes to an output folder; settle what an earlier one left.

    The operating system holds the lock, so it ends with its process, however that ends. Of a
    distributed run the first process holds it. Folders made for the lock that stay empty
    are removed again.

    Raises:
        OutputError: where another process holds it, naming that process.
    """
    folder = check_folder(path)
    if not first():
        yield folder
        return
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    make_folder(folder)
    handle = _lock(folder)
    try:
        settle(folder)
        _sweep(folder)
        yield folder
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)
        with suppress(OSError):  # not empty: it holds results
            for place in made:
                place.rmdir()


def _lock(folder: Path) -> int:
    import fcntl

    path = folder / LOCK
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise OutputError(f"cannot lock output folder {folder}: {error.strerror}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise OutputError(
                f"output folder {folder} is in use by {owner}. Wait until it has ended, or choose "
                "another folder with --output."
            ) from error
        with suppress(OSError):  # gone: its last holder removed it between our two calls
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return handle
        os.close(handle)
