"""Where the time of fine-tuning in a standard audit goes: one ResNet-18 at 64x64, on one device.

Runs every attack that trains the network by ``tune``, with its whole search, against an untrained
ResNet-18 on 6,000 random images of 100 classes: what a model of an audit costs for one attacker.
Prints seconds per attack and their sum; the target is ten minutes. With a path as argument, saves
them as a record. ``--budget`` shortens the runs, to see that everything runs.
"""

from __future__ import annotations

import argparse
import warnings

import torch

from common import arguments, save
from immunis import Task
from immunis.attacks import ATTACKS, BUDGETS
from immunis.attacks.arrays import Samples
from immunis.attacks.contract import Arena
from immunis.attacks.search import run_attack
from immunis.audits.describe import Reader
from immunis.models.find_cut import cut
from immunis.models.zoo import named_network
from immunis.training.settings import device_of

TARGET, CLASSES = 600.0, 100


def options() -> argparse.Namespace:
    """Return where it runs, and how long."""
    parser = arguments(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=int, default=BUDGETS["standard"].tuning)
    parser.add_argument("--images", type=int, default=6000)
    return parser.parse_args()


def main() -> None:
    """Search every fine-tuning attack once."""
    given = options()
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(0)

    def sample(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 3, 64, 64, generator=generator), torch.arange(count) % CLASSES

    samples = Samples.of(Task(sample(given.images), sample(given.images // 4), "images"))
    example, device = torch.from_numpy(samples.train.inputs[:2]), device_of(given.device)
    model = cut(named_network("timm", "resnet18", CLASSES), example, CLASSES).on(device)
    reader, found = Reader(example), dict[str, float]()
    for attack in (a for a in ATTACKS.values() if a.fine_tunes):
        layers = attack.layers(model)
        cache = {layer: reader.read("resnet18", model, samples, layer) for layer in layers}
        more = {"cache": cache, "primary": samples, "budget": given.budget, "device": device}
        result = run_attack(attack.name, Arena(model, **vars(samples), **more))
        if result["status"] == "done":
            found[attack.name] = result["seconds"]
            print(f"{found[attack.name]:8.1f} s  {attack.name}", flush=True)
        else:
            print(f"       -    {attack.name}: {result['reason']}")
    total = sum(found.values())
    print(f"{total:8.1f} s  all; target {TARGET:.0f} s for {BUDGETS['standard'].tuning} steps")
    kind = torch.cuda.get_device_name() if device == "cuda" else device
    figures = {"wall": total, "target": TARGET, "attacks": found}
    save(given.record, f"fine-tuning of ResNet-18, 64x64, {kind}", figures, budget=given.budget)


if __name__ == "__main__":
    main()
