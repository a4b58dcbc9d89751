"""What several tests share: small tasks, networks, files, oracles."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
