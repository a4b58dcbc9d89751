"""A user's own arrays, from NumPy ``.npz`` files."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from immunis.core.errors import InputError
from immunis.data.sources.common import Tasks, by_turns, check_unpacked
from immunis.data.task import Task

UNREADABLE = (  # what NumPy and zipfile raise on foreign bytes
    *(ValueError, AttributeError, RuntimeError, MemoryError, EOFError, KeyError),
    *(zipfile.BadZipFile, zlib.error),
)


def npz(
    primary: str, harmful: str, attacker: str | None = None, folder: str | None = None
) -> Tasks:
    """Read tasks from ``.npz`` files with ``x_train``, ``y_train`` and optional test arrays.

    Without ``attacker``, every second training row of each class of the harmful file is kept from
    the defender and given to the attacker. Pickled arrays are refused.
    """
    base = Path(folder or ".")
    main = _read(base / primary)
    harm = _read(base / harmful)
    first, test = harm["x_train"], _test(harm)
    if attacker is None:
        labels = harm["y_train"]
        one = labels.ndim == 1 and labels.dtype.kind in "biu"  # of other targets all are one class
        mine, theirs = by_turns(labels.tolist() if one else [0] * len(labels))
        own, defender = (first[theirs], labels[theirs]), (first[mine], labels[mine])
    else:
        other = _read(base / attacker)
        own, defender = (other["x_train"], other["y_train"]), (first, harm["y_train"])
        test = _test(other) or test
    name = Path(harmful).stem
    return Tasks(
        Task((main["x_train"], main["y_train"]), _test(main), Path(primary).stem),
        Task(defender, test, name),
        Task(own, test, f"{name} (attacker)"),
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from error
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{path} is not a plain .npz file of arrays: {error}.") from error
    missing = {"x_train", "y_train"} - set(arrays)
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(sorted(missing))}; it has {', '.join(arrays) or 'nothing'}. "
            "Save it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)."
        )
    for part in ("train", "test"):
        x, y = (arrays.get(f"{name}_{part}") for name in "xy")
        if x is not None and y is not None and (not y.ndim or x.shape[:1] != y.shape[:1]):
            raise InputError(
                f"{path}: x_{part} of shape {x.shape} and y_{part} of shape {y.shape}; they must "
                "pair up one to one."
            )
    return arrays


def _check_sizes(path: Path) -> None:
    """Refuse a bomb, and an array whose header claims another size than the file holds."""
    headers = {(1, 0): np.lib.format.read_array_header_1_0}
    headers[2, 0] = np.lib.format.read_array_header_2_0
    with zipfile.ZipFile(path) as archive:
        check_unpacked(path, sum(member.file_size for member in archive.infolist()))
        for member in archive.infolist():
            with archive.open(member) as file:
                read = headers.get(np.lib.format.read_magic(file))
                if read is None:
                    raise ValueError(f"{member.filename} is of an unknown version")
                shape, _, kind = read(file)
                claimed, held = math.prod(shape) * kind.itemsize, member.file_size - file.tell()
            if not kind.hasobject and claimed != held:  # objects are refused when they are read
                raise ValueError(f"{member.filename} claims {claimed:,} bytes and holds {held:,}")


def _test(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise InputError("an .npz file holds only one of x_test and y_test; give both or neither.")
    return (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
