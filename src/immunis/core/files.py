"""Files: written whole or not at all, with their hashes, and checked before they are read.

Files that immunis reads again (records, finished jobs, checkpoints, kept networks) carry their
SHA-256 inside.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from immunis.core.errors import InputError, OutputError

T = TypeVar("T")
MOST_TEXT = 1 << 20  # bytes of a small text, such as a README
MOST_BYTES, MOST_RATIO = 1 << 30, 100  # a packed file may unpack to the larger of the two
DEEPEST = 100  # lists and objects in one another, in JSON that is read; more ends the recursion
SCRAP, UNFINISHED = ".immunis-", ".unfinished"  # how the name of an unfinished file begins and ends
SCRAPS = re.compile(rf"{re.escape(SCRAP)}[a-z0-9_]{{8}}{re.escape(UNFINISHED)}")


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file for reading; never wait for a pipe, never read a device without end.

    Raises:
        OSError: for what cannot be opened, or is no regular file.
    """
    kind = os.stat(path).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))
    return open(path, "rb")


def read_text(path: str | Path, most: int = MOST_TEXT) -> str:
    """Return the UTF-8 text of a regular file of at most so many bytes.

    Raises:
        OSError: for what cannot be read, is no regular file, or is larger.
        UnicodeDecodeError: if it is not UTF-8.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has over {most:,} bytes", str(path))
        return file.read().decode().replace("\r\n", "\n")


def read_json(path: Path, kind: type[T]) -> T:
    """Return what a small JSON file holds.

    Raises:
        InputError: if it cannot be read, or holds something else than ``kind``.
    """
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if not isinstance(found, kind):
        came = f"{path} holds a {type(found).__name__}"
        raise InputError(f"{came}; expected a {kind.__name__}, as the library writes it.")
    return found


def check_file(path: Path, sha256: str) -> None:
    """Raise ``InputError`` unless a file hashes to ``sha256``."""
    try:
        with open_regular(path) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    if found != sha256.lower():
        raise InputError(
            f"{path} has SHA-256 {found}; expected {sha256}. The file is another version or was "
            "damaged: fetch it again, or give its own hash."
        )


def make_folder(path: str | Path) -> Path:
    """Create an output folder and prove that it can be written to."""
    folder = Path(path)
    try:
        for place in (*reversed(folder.parents), folder):  # parents=True recurses
            place.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a ValueError: the path holds a NUL character
        raise OutputError(
            f"cannot write to output folder {folder}: {_reason(error)} "
            "Choose another with --output, or change its permissions."
        ) from error
    return folder


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Raise ``OutputError`` ("cannot ...") in place of an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return why the operating system refused, and what to do about a full disk."""
    advice = " Free some space." if getattr(error, "errno", None) == errno.ENOSPC else ""
    return f"{getattr(error, 'strerror', error)}.{advice}"


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file under a temporary name, then rename it."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | Path, *parts: bytes | memoryview) -> Path:
    """Write a file, given in one part or several, under a temporary name, then rename it."""
    path = Path(path)
    with reported(f"write {path}"):
        handle, name = tempfile.mkstemp(UNFINISHED, SCRAP, path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
            sync(path.parent)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return path


def sync(folder: Path) -> None:
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


def key_of(*parts: Any) -> str:
    """Return a stable name for a result: the hash of everything that decides it."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sealed(values: Mapping[str, Any]) -> str:
    """Return plain JSON values as text, with their checksum."""
    whole = {**values, "checksum": checksum(values)}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def unsealed(path: str | Path, what: str) -> dict[str, Any]:
    """Read values that ``sealed`` made text of.

    Raises:
        InputError: if the file is missing, damaged, without its checksum, or not a JSON object.
    """
    try:
        values = json.loads(read_text(path, MOST_BYTES))
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); expected a {what}.") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}; it is not an immunis {what}.")
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for part in parts for item in part if isinstance(item, dict | list)]
    if level:
        raise InputError(f"{path} is nested deeper than {DEEPEST}; no {what} of immunis is.")
    if "checksum" not in values:
        raise InputError(f"{path} has no checksum; expected a {what}, as immunis wrote it.")
    if values.pop("checksum") != checksum(values):
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
            raise ValueError(
                "its entries are packed, which torch.save never does; it may be a bomb"
            )
    file.seek(0)


def check_unpacked(path: Path, size: int) -> None:
    """Refuse a file that unpacks to far more than its own size, before it fills the memory."""
    packed = path.stat().st_size
    most = max(MOST_BYTES, MOST_RATIO * packed)
    if size > most:
        raise InputError(
            f"{path} unpacks to {size:,} bytes or more from {packed:,}; at most {most:,} are "
            "accepted. If it is yours, save it unpacked."
        )
