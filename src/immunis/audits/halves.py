"""The two halves of the harmful test rows: one to develop on, one to open at the end.

Settings that are chosen by a test score make that score too good. So the rows are split once, and
an audit scores the development half unless it is final.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from immunis.attacks.arrays import Data, Samples, tensor
from immunis.core.disk_arrays import MEMORY, Memory
from immunis.core.errors import InputError
from immunis.data.checks import hash_rows

FEWEST = 50  # rows of each half; below it all rows are one


def half_of(
    samples: Samples, final: bool, name: str, shelf: Memory = MEMORY
) -> tuple[Samples, dict[str, Any]]:
    """Return a task with one half of its test rows, and what a record says of it.

    The parity of a row's hash decides, whatever the other rows and their order: a row never
    changes sides, and copies of it are on its side. Where a half would have fewer than 50 rows
    there is no final half: all rows are for development. A class of few rows may lie in one half
    alone, so the half that is returned is checked like a whole test set. The rows given are
    dropped from the shelf.

    Raises:
        InputError: if the final half is asked for and there are too few rows, or if every answer
            scores alike on the half.
    """
    test = samples.test
    odd = np.array([bool(value & 1) for value in hash_rows(tensor(test.inputs))])
    count, fewest = len(odd), int(min(odd.sum(), (~odd).sum()))
    if fewest < FEWEST:
        if final:
            raise InputError(
                f"{name} has {count} test rows, and a half of them {fewest}; a final audit needs "
                f"{FEWEST} rows or more in each half. Give more test rows, or leave --final out."
            )
        return samples, {"half": "all", "rows": count, "of": count}
    chosen = np.flatnonzero(odd if final else ~odd)
    inputs = shelf.take(test.inputs, chosen)
    shelf.drop(test.inputs)
    part = replace(samples, test=Data(inputs, test.labels[chosen]))
    half = "final" if final else "development"
    part.check_test(f"{name}, {half} half")
    return part, {"half": half, "rows": len(chosen), "of": count}
