"""Rows of booleans and floats as text."""

import json

import numpy as np
import pytest

from immunis import InputError
from immunis.core.packing import packed, unpacked


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 1000])
def test_booleans_come_back_as_they_were_in_an_eighth_of_the_bytes(rows):
    values = np.random.default_rng(rows).random(rows) < 0.3
    found = json.loads(json.dumps(packed(values)))
    assert np.array_equal(unpacked(found), values) and unpacked(found).dtype == bool
    assert len(found["base64"]) <= 4 * (rows // 24 + 1)


def test_floats_come_back_in_single_precision():
    values = np.array([0.0, 1e-9, 0.1, np.inf])
    assert np.array_equal(unpacked(packed(values)), values.astype(np.float32).astype(float))


@pytest.mark.parametrize(
    "change", [{"rows": 17}, {"rows": 0}, {"base64": "oA=*"}, {"base64": "é"}, {"kind": "floats"}]
)
def test_text_that_holds_other_rows_is_refused(change):
    whole = packed(np.array([True, False, True]))
    with pytest.raises(InputError, match="packed"):
        unpacked({**whole, **change})
