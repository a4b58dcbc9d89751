"""A record: one run as JSON, with everything needed to make it again.

Tables, figures and cards are built from records alone. Infinite and undefined figures are
written as the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"`` (JSON has no numbers for
them) and come back as floats.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from immunis.core.errors import InputError
from immunis.core.files import checksum, sealed, unsealed, write_text
from immunis.core.shape_check import shaped_record

SCHEMA = 1
PACKAGES = ("immunis", "torch", "numpy", "scipy", "scikit-learn")
_CONTROL = re.compile(  # moves a cursor, turns text around, or is half of a character
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclass(frozen=True)
class Record:
    """One run: what was asked, on what data, with what, and what came out.

    Control characters in names are written out (``printable``), so that nothing that is made
    from a record carries them.
    """

    kind: str
    name: str
    figures: Any  # plain values, shaped by the kind: immunis.core.shapes
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    seconds: float = 0.0
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=lambda: installed_versions())
    commit: str | None = field(default_factory=lambda: source_commit())
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Write control characters out."""
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            clean = _printable(value)
            if clean != value:
                object.__setattr__(self, entry.name, clean)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with special floats as strings."""
        return plain(dataclasses.asdict(self))

    def to_json(self) -> str:
        """Return the record as indented JSON."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def with_settings(self, **settings: Any) -> Record:
        """Return the same record with more settings."""
        return dataclasses.replace(self, settings={**self.settings, **settings})

    def checked(self) -> Record:
        """Return the record with plain values that fit the shape of its kind.

        Raises:
            InputError: for a value that does not fit, naming its path.
        """
        return Record(**shaped_record(self.to_dict()))

    def digest(self) -> str:
        """SHA-256 of the record's JSON."""
        return checksum(self.to_dict())

    def to_file(self) -> str:
        """Return what ``save`` writes: JSON with the record's digest as checksum."""
        return sealed(self.to_dict())

    def save(self, path: str | Path) -> Path:
        """Write the record with its digest as checksum, whole or not at all."""
        return write_text(path, self.to_file())

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a record back; refuses other files, damaged ones and newer schemas."""
        values = unsealed(path, "record")
        known = {f.name for f in dataclasses.fields(cls)}
        if not {"kind", "name", "figures", "schema"} <= set(values):
            raise InputError(f"{path} is not an immunis record: it lacks kind, name or figures.")
        schema = values["schema"]
        if type(schema) is not int or not 1 <= schema <= SCHEMA:
            newer = isinstance(schema, int) and schema > SCHEMA
            raise InputError(
                f"{path} has schema {schema!r}; this version reads 1 to {SCHEMA}. "
                f"{'Upgrade immunis.' if newer else 'Run it again with this version.'}"
            )
        try:
            return cls(**shaped_record(_migrated({k: values[k] for k in values if k in known})))
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def printable(text: str) -> str:
    r"""Write control characters of a text out, but for line ends and tabs.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _printable(value: Any) -> Any:
    if type(value) is str:
        return printable(value)
    if type(value) is dict:
        return {_printable(key): _printable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_printable, value))
    return value


def plain(value: Any) -> Any:
    """Return a value as strict JSON holds it: special floats become strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)


def _migrated(values: dict[str, Any]) -> dict[str, Any]:
    """Give a record of an earlier version what this one expects, as far as it can be known.

    The first records named data by its task, not by its role, and did not compare a linear map
    with its inputs.
    """
    data, figures = values.get("data"), values["figures"]
    if values["kind"] in ("demo", "immunize") and isinstance(data, dict):
        for task, entry in data.items():
            if isinstance(entry, dict):
                entry.setdefault("name", task)
    if values["kind"] == "immunize" and isinstance(figures, dict):
        for name in ("rir_against_inputs", "ceiling_against_inputs"):
            figures.setdefault(name, None)
    return values


def installed_versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that shape the figures."""
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def source_commit() -> str | None:
    """Commit of the source tree this package runs from, ``+`` if changed; None if installed."""
    folder = Path(__file__).resolve().parent
    if not (folder.parents[1] / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
