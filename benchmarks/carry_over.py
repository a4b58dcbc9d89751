"""What of a defence carries over to an attacker's rows: ρ alone, with collapse, keep and mix.

python benchmarks/carry_over.py [record.json] [--data FOLDER]

A small network on Tiny-ImageNet-100 at 16x16 pixels, which learns 3,300 harmful images by heart as
larger ones do; ridge probes are cross-validated among rows of one sort. Minutes on a CPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import warnings

import torch
from torch import nn

from common import arguments, save
from immunis.data.sources.common import Tasks
from immunis.data.task import Task
from immunis.methods import get_method
from immunis.models.find_head import cut
from immunis.recipes import load_recipe
from immunis.theory.scores import answers, score
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.selection import crossed
from immunis.training.settings import training_of

SIZE, SEEDS = 16, 3
VARIANTS = {  # settings of the method and of training
    "probe": ({}, {}),
    "with collapse": ({"collapse": 0.3}, {}),
    "with collapse and keep": ({"collapse": 0.3, "keep": 1.0}, {}),
    "with collapse, keep and mix": ({"collapse": 0.3, "keep": 1.0}, {"mix": True}),
    "as well, twice the steps": ({"collapse": 0.3, "keep": 1.0}, {"mix": True, "steps": 1000}),
}
HARMFUL = {"Flowers": "tiny-imagenet-flowers-resnet18", "Cars": "tiny-imagenet-cars-resnet18"}
PRETRAINING = {"layers": ["*"], "epochs": 12, "augment": True, "evaluate": 3}
TRAINING = {"layers": ["*"], "steps": 500, "harmful_batch": 1024, "augment": True, "evaluate": 1}


def small_tasks(recipe: str, folder: str | None) -> Tasks:
    """Return the tasks of a recipe at the size of these networks."""
    loaded = load_recipe(recipe)
    return dataclasses.replace(loaded, data={**loaded.data, "size": SIZE}).tasks(folder)


def network(seed: int = 0) -> nn.Module:
    """Three hidden layers, 128 features."""
    torch.manual_seed(seed)
    widths = (3 * SIZE * SIZE, 512, 256, 128)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], 100)).eval()


def read(model: nn.Module, defender: Task, attacker: Task, primary: Task) -> dict[str, float]:
    """What probes read of the defender's rows and of the attacker's; primary score."""
    whole = cut(model, primary.train.first(2), primary.outputs)

    def of(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = task.train.tensors()
        with torch.no_grad():
            return whole.features(inputs), task.positions(labels)

    return {
        "own": crossed(of(defender), "classification", defender.outputs),
        "attacker": crossed(of(attacker), "classification", attacker.outputs),
        "primary": score(*answers(model, primary), primary.kind),
    }


def main() -> None:
    """Run, print, and save a record if a path is given."""
    parser = arguments(__doc__)
    parser.add_argument("--data")
    given = parser.parse_args()
    figures = {}
    warnings.simplefilter("ignore")  # what they say is measured here
    probe, start = get_method("probe"), None
    for name, recipe in HARMFUL.items():
        tasks = small_tasks(recipe, given.data)
        primary, samples = tasks.primary, (tasks.harmful, tasks.attacker, tasks.primary)
        if start is None:
            whole = cut(network(), primary.train.first(2), primary.outputs)
            start = fit(whole, supervised_only(), primary, None, training_of(PRETRAINING)).model
        whole = cut(start, primary.train.first(2), primary.outputs)
        found = {"untrained": [read(network(1), *samples)], "original": [read(start, *samples)]}
        for label, (settings, training) in VARIANTS.items():
            objective = probe.objective(probe.configure(settings, network=True), whole)
            found[label] = []
            for seed in range(SEEDS):
                how = training_of(TRAINING | training)
                result = fit(whole, objective, primary, tasks.harmful, how, seed=seed)
                found[label].append(read(result.model, *samples))
        figures[name] = found
        for label, rows in found.items():
            means = {k: round(statistics.mean(r[k] for r in rows), 4) for k in rows[0]}
            print(name, label, means, flush=True)
    settings = {"pretraining": PRETRAINING, "training": TRAINING, "variants": VARIANTS}
    save(given.record, "what carries over to an attacker's rows", {"samples": figures}, **settings)


if __name__ == "__main__":
    main()
