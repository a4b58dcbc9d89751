"""One writer at a time: a folder or a file is held by a lock of the operating system."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from immunis.core.errors import OutputError
from immunis.core.files import SCRAP, SCRAPS, make_folder, reported, write_text
from immunis.core.releases import SUMS, foreign, release, settle

LOCK = ".immunis-lock"
LONGEST = 1000  # bytes of a lock
HOLDER = re.compile(r"process (\d{1,9}) on (.*)\n")  # what a lock holds
OLD = 3600.0  # seconds until files of killed writers are removed


def publish(path: str | Path, text: str) -> Path:
    """Write one text file; in the folder of a release, update its checksum too."""
    path = Path(path)
    if not (path.parent / SUMS).exists():
        return write_text(path, text)
    with hold(path.parent) as folder:
        return release(folder, {path.name: text})[0]


@contextmanager
def hold(path: str | Path) -> Iterator[Path]:
    """Hold a folder as its only writer; finish or clean up what an earlier writer left.

    The operating system holds the lock, so it ends with its process, however that ends. In a
    distributed run the first process holds it. A folder made for the lock goes if it stays empty.

    Raises:
        OutputError: if another process holds the folder; the message names that process. If there
            is a file of the lock's name that is no lock; it is left alone.
    """
    from immunis.core.distributed import first  # late: it imports torch, which takes seconds

    folder = Path(path)
    if not first():
        yield folder
        return
    made = [p for p in (folder, *folder.parents) if not os.path.exists(p)]
    lock, note = FileLock(folder / LOCK), folder / LOCK
    try:
        make_folder(folder)
        with reported(f"lock output folder {folder}"):
            if not _is_lock(note):
                raise foreign(note)
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
            with suppress(OSError):  # not ours to look at
                _free_shared_memory(note.read_text(errors="replace"))
            note.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        settle(folder)
        for scrap in folder.rglob(f"{SCRAP}*"):  # of processes that were killed while writing
            with suppress(OSError):
                if SCRAPS.fullmatch(scrap.name) and scrap.stat().st_mtime < time.time() - OLD:
                    scrap.unlink()
        yield folder
    finally:
        if lock.is_locked:
            note.unlink(missing_ok=True)
            lock.release()
        with suppress(OSError):  # not empty: it holds results
            for place in made:
                place.rmdir()


@contextmanager
def locked(path: Path, seconds: float = 30.0) -> Iterator[None]:
    """Hold one file as its only writer; wait for another that holds it.

    Raises:
        OutputError: if another process holds it for longer than ``seconds``.
    """
    lock = FileLock(path.with_name(path.name + LOCK))
    try:
        lock.acquire(timeout=seconds)
    except Timeout as error:
        raise OutputError(f"{path} is in use by another process. Try again later.") from error
    try:
        yield
    finally:
        lock.release()


def _is_lock(note: Path) -> bool:
    """Return False for a file that is there and no lock; links are never followed."""
    if note.is_symlink() or not note.exists():
        return True
    if not note.is_file() or note.stat().st_size > LONGEST:
        return False
    text = note.read_text(errors="replace")
    return not text or HOLDER.fullmatch(text) is not None


def _free_shared_memory(note: str) -> None:
    """Free what the workers of a folder's last holder shared, if it was killed on this machine.

    The holder's tracker does so, unless it was killed too.
    """
    holder = HOLDER.fullmatch(note)
    if not holder or holder[2] != socket.gethostname():
        return
    with suppress(ProcessLookupError):
        os.kill(int(holder[1]), 0)
        return  # it lives
    places = {Path("/dev/shm"), Path(tempfile.gettempdir())}  # nosec B108 - joblib's choice
    for name in (f"sem.loky-{holder[1]}-*", f"joblib_memmapping_folder_{holder[1]}_*"):
        for path in (path for place in places for path in place.glob(name)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
