"""How much of a 1,000-class function is left of a network that was trained on 100 of its classes.

A laboratory without ImageNet distils on the images it has. The recipe's network keeps the rows of
ImageNet's head that the primary task needs; here it gets all of them back. It then answers images
that nobody trained on: the primary, the harmful and the transfer test images. A figure is the
share of images on which its best of 1,000 classes is the original's; ``elsewhere`` counts those
alone that the original gives to one of the other 900 classes. Their rows are the original's own: it
measures the features alone. The original itself agrees on every image.

Each FOLDER holds a network that ``immunis immunize`` or ``immunis audit`` made (a .safetensors
file, or a folder with ``model.safetensors``). Give several, the same training without a defence
among them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from common import arguments, save
from helpers.networks import whole_again
from immunis import Task
from immunis.data.split import Split
from immunis.models.imagenet import CLASSES, imagenet_rows
from immunis.models.weights import load_weights
from immunis.recipes import load_recipe
from immunis.training.settings import device_of


@torch.no_grad()
def answers(model: torch.nn.Module, split: Split, device: str) -> torch.Tensor:
    """Return the best class of every image."""
    model = model.to(device).eval()
    return torch.cat([model(x.to(device)).argmax(1).cpu() for x, _ in split.batches(256)])


def main() -> None:
    """Compare each network with the original, and print a line each."""
    parser = arguments(__doc__)
    parser.add_argument("--recipe", default="efficientnet-lite0-cars")
    parser.add_argument("--data", help="folder of data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--network", action="append", default=[], metavar="NAME=FOLDER")
    given = parser.parse_args()
    recipe, device = load_recipe(given.recipe), device_of(given.device)
    tasks = recipe.tasks(given.data)
    rows = imagenet_rows(tasks.primary.class_names)
    whole = dataclasses.replace(recipe, model={**recipe.model, "imagenet_head": False})
    example = tasks.primary.train.first(2)
    original = whole.extractor(Task((example, torch.arange(2)), classes=CLASSES))
    splits = {task.name: task.test for task in (tasks.primary, tasks.harmful, *tasks.transfer)}
    wanted = {name: answers(original, split, device) for name, split in splits.items()}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for name, _, place in (pair.partition("=") for pair in given.network):
        model, path = recipe.extractor(tasks.primary), Path(place)
        load_weights(model, path / "model.safetensors" if path.is_dir() else path)
        model, figures[name] = whole_again(model, original.cpu(), rows), {}
        for task, split in splits.items():
            same = answers(model, split, device) == wanted[task]
            elsewhere = ~torch.isin(wanted[task], torch.tensor(rows))
            figures[name][task] = {
                "agreement": float(same.float().mean()),
                "elsewhere": float(same[elsewhere].float().mean()),
                "images": len(same),
            }
            print(name, task, figures[name][task])
    save(given.record, f"agreement, {recipe.name}", figures, networks=given.network)


if __name__ == "__main__":
    main()
