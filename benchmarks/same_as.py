"""Compare the figures of commands with those of an earlier commit, as they are printed.

``python benchmarks/same_as.py COMMIT ["demo --linear" …]`` runs each command with the sources of
the commit and with these ones. It prints the figures that differ and counts the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from immunis.report.format import number

ROOT = Path(__file__).parents[1]
NOISE = 1e-12  # eigenvalues beyond the rank, and what descent leaves of a solved problem
COMMANDS = ["demo --linear", "immunize digit-parity"]


def figures(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each figure of a record and the figure as it is printed."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from figures(item, f"{path}.{key}" if path else str(key))
    elif not path.endswith("seconds"):
        yield path, number(0.0 if isinstance(value, float) and abs(value) < NOISE else value)


def run(sources: Path, command: str, folder: Path) -> dict[str, str]:
    """Run a command with some sources, and return its figures by path."""
    module = "immunis"
    if not (sources / "immunis" / "__main__.py").exists():  # version 0.1
        module, command = "immunis.cli", command.replace("demo --linear", "demo")
    subprocess.run(
        [sys.executable, "-m", module, *command.split(), "--output", str(folder)],
        env={**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return dict(figures(json.loads((folder / "record.json").read_text())["figures"]))


def main() -> None:
    """Compare each command and end with exit code 1 if a figure differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("commands", nargs="*", default=COMMANDS)
    given, differ = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        packed = subprocess.run(
            ["git", "archive", given.commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "x", "-C", made], input=packed.stdout, check=True)
        for place, command in enumerate(given.commands):
            before = run(folder / "src", command, folder / f"before-{place}")
            now = run(ROOT / "src", command, folder / f"now-{place}")
            both = [path for path in before if path in now]
            changed = [path for path in both if before[path] != now[path]]
            differ += len(changed)
            print(f"{command}: {len(both)} figures in both, {len(changed)} differ; ", end="")
            print(f"{len(before) - len(both)} before alone, {len(now) - len(both)} now alone")
            for path in changed:
                print(f"  {path:60} {before[path]:>12} {now[path]:>12}")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
