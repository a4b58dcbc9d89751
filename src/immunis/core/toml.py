"""TOML files, which may come from anybody: read, or refused with the reason."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from immunis.core.errors import InputError, SettingsError
from immunis.core.files import read_text

MOST_BYTES = 1 << 18
DEEP = re.compile(  # a key of so many parts that reading it would fill the memory
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}"""
)
LONG = re.compile(r"\b0[xob][0-9A-Fa-f_]{3000}")  # a number that Python cannot print


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Return the values of a small TOML file; errors call it ``what`` ("recipe").

    Raises:
        InputError: if it cannot be read.
        SettingsError: if it is too large, nested too deeply, or not TOML.
    """
    try:
        if os.stat(path).st_size > MOST_BYTES:
            raise SettingsError(f"{what} {path} has over {MOST_BYTES:,} bytes.")
        text = read_text(path)
        if DEEP.search(text):
            raise RecursionError
        if LONG.search(text):
            raise ValueError("a number has over 3,000 digits")
        return tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}.") from error
    except ValueError as error:  # a number of thousands of digits is a plain one
        raise SettingsError(f"{what} {path} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise SettingsError(f"{what} {path} is nested too deeply.") from error
