"""Audit a model you did not train: somebody released two checkpoints; is the second one safer?

python examples/audit_only.py
"""

import torch
from torch import nn

from immunis import Task, audit


def checkpoint(seed: int) -> nn.Sequential:
    """Stands for a model you were given: load yours here, in evaluation mode."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16), nn.Linear(16, 3)).eval()


def samples(count: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stands for your data."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    centres = torch.randn(classes, 20, generator=torch.Generator().manual_seed(classes))
    return centres[y] + torch.randn(count, 20, generator=generator), y


def main() -> None:
    """Print what the best attack reads from each model, and from an untrained one."""
    primary = Task(samples(300, 3, seed=1), samples(150, 3, seed=2), "what they are for")
    harmful = Task(samples(200, 4, seed=3), samples(200, 4, seed=4), "what they should not learn")
    result = audit(
        {"original": checkpoint(0), "second release": checkpoint(1)},
        primary,
        harmful,
        attacks=["ridge", "logistic", "knn", "drop_last", "finetune_all"],
        effort={"seeds": 2, "budget": 50},
    )
    for name, case in result.worst_case.items():
        print(f"{name}: {case.highest_attack} reaches {case.highest_accuracy:.1%}")
    for attack, rows in result.record.figures["attacks"].items():
        print(attack, {name: round(row["score"]["mean"], 3) for name, row in rows.items()})


if __name__ == "__main__":
    main()
