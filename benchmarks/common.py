"""What the benchmarks share: the naive versions to compare with, arguments, lines and records."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.reference import naive_algorithm_1
from immunis import Record

__all__ = ["arguments", "line", "naive_algorithm_1", "save"]
BEGAN = time.perf_counter()


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return a parser that takes the path of a record to save."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("record", nargs="?", help="where to save the figures")
    return parser


def line(what: str, ratio: float, target: float, sound: bool = True) -> dict[str, Any]:
    """Print a ratio beside the least it should be, and return the row of a record."""
    met = ratio >= target and sound
    print(f"{'ok  ' if met else 'MISS'} {ratio:.3g}x (target {target:.3g}x)  {what}")
    return {"what": what, "ratio": ratio, "target": target, "met": met}


def save(path: str | None, name: str, figures: dict[str, Any], **settings: Any) -> None:
    """Save a record of the benchmark if a path is given."""
    if path:
        seconds = time.perf_counter() - BEGAN
        record = Record("bench", name, figures, settings=settings, seed=0, seconds=seconds)
        print("written:", record.save(path))
