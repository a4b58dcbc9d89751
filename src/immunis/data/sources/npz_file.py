"""A user's own arrays, from NumPy ``.npz`` files."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from immunis.core.errors import InputError
from immunis.core.files import check_unpacked
from immunis.core.places import find_data
from immunis.data.scale import standardised
from immunis.data.task import Task, Tasks, by_turns

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def npz(
    primary: str,
    harmful: str,
    attacker: str | None = None,
    folder: str | None = None,
    standardise: bool = False,
) -> Tasks:
    """Read tasks from ``.npz`` files with ``x_train``, ``y_train`` and optional test arrays.

    Without ``attacker``, every second training row of each class of the harmful file is kept from
    the defender and given to the attacker. Pickled arrays are refused. ``standardise`` puts every
    column of a table on the scale of the primary training rows.
    """

    def at(name: str) -> Path:
        return find_data(folder, "Pass --data, set $IMMUNIS_DATA, or give folder.", name)

    main, harm = _read(at(primary)), _read(at(harmful))
    (x, y), test = harm["train"], harm.get("test")
    if attacker is None:
        classes = y.ndim == 1 and y.dtype.kind in "biu"
        mine, theirs = by_turns(y.tolist() if classes else [0] * len(y))
        defender, own = (x[mine], y[mine]), (x[theirs], y[theirs])
    else:
        other = _read(at(attacker))
        defender, own, test = (x, y), other["train"], other.get("test", test)
    name = Path(harmful).stem
    tasks = Tasks(
        Task(main["train"], main.get("test"), Path(primary).stem),
        Task(defender, test, name),
        Task(own, test, f"{name} (attacker)"),
    )
    if not standardise:
        return tasks
    first, second, third = standardised(*tasks[:3])
    return Tasks(first, second, third)


def _read(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the pairs ``train`` and, if the file has it, ``test`` of inputs and labels."""
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from error
    except InputError:
        raise
    except Exception as error:  # zipfile and NumPy raise anything on foreign bytes
        raise InputError(f"{path} is not a plain .npz file of arrays: {error}.") from error
    pairs = {}
    for part in ("train", "test") if {"x_test", "y_test"} & set(arrays) else ("train",):
        keys = f"x_{part}", f"y_{part}"
        if missing := [key for key in keys if key not in arrays]:
            has = f"it has {', '.join(arrays) or 'nothing'}"
            hint = "Save it with numpy.savez(path, x_train=..., y_train=..., ...)"
            raise InputError(f"{path} lacks {', '.join(missing)}; {has}. {hint}.")
        x, y = pairs[part] = arrays[keys[0]], arrays[keys[1]]
        if not y.ndim or x.shape[:1] != y.shape[:1]:
            came = f"x_{part} of shape {x.shape} and y_{part} of shape {y.shape}"
            raise InputError(f"{path}: {came}; they must pair up one to one.")
    return pairs


def _check_sizes(path: Path) -> None:
    """Refuse a bomb, and an array whose header claims another size than the file holds."""
    with zipfile.ZipFile(path) as archive:
        check_unpacked(path, sum(member.file_size for member in archive.infolist()))
        for member in archive.infolist():
            with archive.open(member) as file:
                shape, _, kind = HEADERS[np.lib.format.read_magic(file)](file)
                claimed, held = math.prod(shape) * kind.itemsize, member.file_size - file.tell()
            if not kind.hasobject and claimed != held:  # np.load refuses objects itself
                raise ValueError(f"{member.filename} claims {claimed:,} bytes and holds {held:,}")
