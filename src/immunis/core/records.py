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

from immunis.core.display import Shown
from immunis.core.errors import InputError
from immunis.core.files import checksum, sealed, unsealed, write_text
from immunis.core.shape_check import shaped_record

__version__ = "0.1.0"
SCHEMA = 1
RELEASED_LOOP_SINCE = "2026-11-18"  # earlier reproductions ran another loop than the released one
RANKS_DIFFER = "ranks differ"  # why a ratio of condition numbers is not defined
PACKAGES = ("immunis", "torch", "numpy", "scipy", "scikit-learn")
_CONTROL = re.compile(  # moves a cursor, turns text around, is unseen, or is no character (YAML)
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069"
    r"\ud800-\udfff\ufeff\ufff0-\ufffb\ufffe\uffff]"
)


@dataclass(frozen=True, repr=False)
class Record(Shown):
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
            object.__setattr__(self, entry.name, readable(getattr(self, entry.name)))

    def __repr__(self) -> str:
        return f"Record({self.kind!r}, {self.name!r})"

    @property
    def record(self) -> Record:
        """The record itself, so that results and records are shown and written alike."""
        return self

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
        """Return the SHA-256 of the record's JSON."""
        return checksum(self.to_dict())

    def to_file(self) -> str:
        """Return what ``save`` writes: JSON with the record's digest as checksum.

        A record that does not fit its shape could not be loaded again, and the fault is ours.
        """
        try:
            self.checked()
        except InputError as error:
            raise AssertionError(f"a fault of immunis, please report it: {error}") from error
        return sealed(self.to_dict())

    def save(self, path: str | Path) -> Path:
        """Write the record with its digest as checksum, whole or not at all."""
        return write_text(path, self.to_file())

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a record; refuse other files, damaged ones and newer schemas."""
        values = unsealed(path, "record")
        known = {f.name for f in dataclasses.fields(cls)}
        if missing := [k for k in ("kind", "name", "figures", "schema") if k not in values]:
            raise InputError(f"{path} is not an immunis record: it lacks {', '.join(missing)}.")
        schema = values["schema"]
        if type(schema) is not int or not 1 <= schema <= SCHEMA:
            newer = isinstance(schema, int) and schema > SCHEMA
            raise InputError(
                f"{path} has schema {schema!r}; this version reads 1 to {SCHEMA}. "
                f"{'Upgrade immunis.' if newer else 'Run it again with this version.'}"
            )
        try:
            shaped = shaped_record(_migrated({k: values[k] for k in values if k in known}))
            return cls(**_undefined_where_ranks_differ(shaped))
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def printable(text: str) -> str:
    r"""Return a text with its control characters written out, except line ends and tabs.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def readable(value: Any) -> Any:
    """Return plain values with the control characters of all texts written out."""
    if type(value) is str:
        return printable(value)
    if type(value) is dict:
        return {readable(key): readable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(readable, value))
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
    created = str(values.get("created", RELEASED_LOOP_SINCE))
    if values["kind"] == "reproduce" and created < RELEASED_LOOP_SINCE:
        raise InputError(
            "this reproduction is of version 0.1, whose loop was not the released one. "
            "Run it again: immunis reproduce"
        )
    if values["kind"] in ("demo", "immunize") and isinstance(data, dict):
        for task, entry in data.items():
            if isinstance(entry, dict):
                entry.setdefault("name", task)
    if values["kind"] == "immunize" and isinstance(figures, dict):
        for name in ("rir_against_inputs", "ceiling_against_inputs"):
            figures.setdefault(name, None)
    return values


def _undefined_where_ranks_differ(values: dict[str, Any]) -> dict[str, Any]:
    """Remove every RIR between features of different ranks; version 0.1 recorded some."""
    figures, roles = values["figures"], ("primary", "harmful")
    pairs: list[tuple[Any, ...]] = []  # what holds a ratio, and what holds the ranks it compares
    if values["kind"] == "immunize":
        both = ({role: figures["spectra"][role][w] for role in roles} for w in ("before", "after"))
        pairs = [(figures, *({"spectra": spectra} for spectra in both))]
    elif values["kind"] in ("audit", "demo"):
        models = figures["models" if values["kind"] == "audit" else "methods"]
        first = models.get(values["settings"].get("original"), next(iter(models.values()), {}))
        rows = (row for of in models.values() for row in (of, *of.get("variants", ())))
        pairs = [(row, first, row) for row in rows]

    def rank(row: Any, role: str) -> Any:
        return row["spectra"][role]["rank"] if "spectra" in row else row.get(f"rank_{role}")

    for row, before, after in pairs:
        unlike = [role for role in roles if rank(before, role) != rank(after, role)]
        if unlike and not isinstance(row["rir"], dict):
            row |= {"rir": None, "rir_reason": RANKS_DIFFER}
        for factors in (row["rir"], row.get("rir_against_inputs")) if unlike else ():
            if isinstance(factors, dict):
                factors |= dict.fromkeys((*unlike, "value")) | {"reason": RANKS_DIFFER}
        if "definition" in row:
            row["definition"] |= {key: {"figure": None, "holds": None} for key in unlike}
    return values


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that shape the figures."""
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def source_commit() -> str | None:
    """Return the commit of the source tree, with ``+`` if it was changed; None if installed."""
    folder = Path(__file__).resolve().parent
    if not (folder.parents[2] / ".git").exists():
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


def log_places(count: int, most: int) -> list[int]:
    """Return at most ``most`` places from 1 to ``count``, both ends included.

    >>> log_places(1000, 4), log_places(3, 64), log_places(0, 64)
    ([1, 10, 100, 1000], [1, 2, 3], [])
    """
    return sorted({round(count ** (i / (most - 1))) for i in range(most)}) if count else []


def log_steps(last: int) -> list[int]:
    """Return 0, about twelve steps in each factor of ten, and ``last``.

    >>> log_steps(10)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    """
    wanted = {0, last, *(round(10 ** (i / 12)) for i in range(12 * 7))}
    return sorted(step for step in wanted if step <= last)
