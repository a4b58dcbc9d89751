"""Where the time of a standard audit goes: 10,000×512 features, three models, two workers.

Prints seconds per attack (summed over models, controls and seeds) and the wall time. With a
path as argument, saves them as a record.
"""

from __future__ import annotations

import time
import warnings

import torch

from common import arguments, save
from immunis import Task, immunize
from immunis.audits.audit import audit


def main() -> None:
    """Audit the identity and two defences of it on synthetic clusters."""
    given = arguments(__doc__).parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    d, classes = 512, 20
    centres = torch.randn(classes, d) * 0.35

    def sample(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(n) % classes
        return centres[labels] + torch.randn(n, d) * torch.logspace(0, -2, d), labels

    primary = Task(sample(4000), sample(1000), "primary")
    defender = Task(sample(4000), name="harmful")
    attacker = Task(sample(8000), sample(2000), "attacker")
    eye = torch.eye(d)
    models = {
        "original": eye,
        "frontier": immunize(eye, primary, defender, "frontier"),
        "erase": immunize(eye, primary, defender, "erase"),
    }
    start = time.perf_counter()
    result = audit(models, primary, attacker, defender=defender, run={"workers": 2})
    wall = time.perf_counter() - start
    spent = sorted(result.record.figures["seconds"].items(), key=lambda item: -item[1])
    for name, seconds in spent:
        print(f"{seconds:8.1f} s  {name}")
    print(f"{wall:8.1f} s  wall time, two workers; target 300 s")
    figures = {"wall": wall, "target": 300.0, "attacks": dict(spent)}
    save(given.record, "standard audit, 10,000x512, three models", figures)


if __name__ == "__main__":
    main()
