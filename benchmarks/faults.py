"""Faults on purpose, and what they leave: ``make faults``.

Commands are killed (SIGKILL) at random moments and at every write, records are forged, and a
process of a distributed run is killed. A row says how often something was tried, and how often it
went wrong. Each part adds its rows to the record as it goes, so a run that is cut short keeps what
it has. Exits with 1 if anything went wrong.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments
from helpers import faulty, forging, kills
from immunis import Record
from immunis.core.records import source_commit

Row = dict[str, Any]
UNTESTED = "NCCL, several GPUs, several machines, power cuts"


def row(what: str, tried: int, wrong: int) -> Row:
    """One fault: how often it was tried, and how often it went wrong."""
    return {"what": what, "tried": tried, "wrong": wrong}


def killed(count: int, deadline: float) -> Iterator[dict[str, Row]]:
    """Kill the four commands at every write, then at random moments, in turns."""
    with tempfile.TemporaryDirectory() as base:
        nursery = kills.Nursery(Path(base))
        written, random = kills.Found(), kills.Found()
        for what in faulty.COMMANDS:
            written += kills.at_writes(nursery, what, deadline=deadline)
        turns = 10
        for turn in range(turns):
            for what in faulty.COMMANDS:
                wanted = (count - written.kills) / len(faulty.COMMANDS) / turns
                random += kills.at_random(nursery, what, math.ceil(wanted), turn, deadline)
            both = written + random
            yield {
                "writes": row("killed at a write: torn files", written.kills, written.torn),
                "random": row("killed at a random moment: torn files", random.kills, random.torn),
                "hangs": row("resumed after kills: hangs", both.resumed, both.hangs),
                "equal": row(
                    "resumed after kills: result is not that of an undisturbed run",
                    both.resumed,
                    both.differ,
                ),
            }


def forged(count: int, deadline: float) -> Iterator[dict[str, Row]]:
    """Put hostile text into records of every kind, and look at all that is made of them."""
    rng, tried, accepted, crashed, wrong = np.random.default_rng(0), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as base:
        while tried < count and time.monotonic() < deadline:
            sound, faults = forging.forge(rng, Path(base), pictures=tried % 50 == 0)
            for fault in faults:
                print(fault)
            crash = any(fault.startswith("crash") for fault in faults)
            tried, accepted, crashed = tried + 1, accepted + sound, crashed + crash
            wrong += bool(faults) and not crash
    what = f"forged records, {accepted:,} of them accepted: HTML, links, YAML, LaTeX or formulas"
    yield {"forged": row(f"{what} that work", tried, wrong)}
    yield {"crashed": row("forged records: crashes", tried, crashed)}


def lost(count: int, deadline: float) -> Iterator[dict[str, Row]]:
    """Kill one of two gloo processes; resume in one process, and in two."""
    for strategy in ("ddp", "fsdp"):
        wrong = 0
        for after in (1, 2):
            with tempfile.TemporaryDirectory() as base:
                try:
                    kills.lose_process(kills.Nursery(Path(base)), Path(base), 2, after, strategy)
                except AssertionError as error:
                    print(error)
                    wrong += 1
        what = f"one of two processes ({strategy.upper()}, gloo) killed"
        yield {strategy: row(f"{what}: the other hangs, or the resumed result differs", 2, wrong)}


PARTS: dict[str, tuple[Callable[[int, float], Iterator[dict[str, Row]]], int]] = {
    "killed": (killed, 1000),
    "forged": (forged, 10_000),
    "lost": (lost, 2),
}


def main() -> int:
    """Run the parts, add their rows to the record, and print them."""
    parser = arguments(__doc__)
    parser.add_argument("--part", choices=PARTS, help="run one alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most for each part")
    given = parser.parse_args()
    path = Path(given.record or "faults.json")
    old = Record.load(path) if path.exists() else None
    rows, commit = dict(old.figures["rows"]) if old else {}, source_commit()
    if commit is None:
        print("the tree names no commit, so nobody could say what was tested; run it in a clone.")
        return 2
    settings = {**(old.settings if old else {}), "not tested": UNTESTED}
    for name, (part, count) in PARTS.items():
        if given.part in (None, name):
            began = time.monotonic()
            for found in part(count, began + 60 * given.minutes):
                rows |= found
                settings[name] = {"commit": commit, "seconds": time.monotonic() - began}
                record = Record("bench", "faults", {"rows": rows}, settings, seed=0, commit=commit)
                record.save(path)
    for each in rows.values():
        verdict = "MISS" if each["wrong"] else "ok  "
        print(f"{verdict} {each['wrong']} of {each['tried']:,}  {each['what']}")
    print("written:", path)
    return int(any(each["wrong"] for each in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
