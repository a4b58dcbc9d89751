"""Immunize a timm model and release it as a folder that timm loads. Needs immunis[vision].

python examples/timm_resnet.py [FOLDER]

The model is small and untrained and its images are noise, so that this runs anywhere in a
minute: put your own model and tasks in their place.
"""

import sys

import timm
import torch

from immunis import Task, immunize
from immunis.report.export import export


def images(count: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stands for your images: noisy copies of one picture a class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    pictures = torch.randn(classes, 3, 32, 32, generator=torch.Generator().manual_seed(classes))
    return pictures[y] + torch.randn(count, 3, 32, 32, generator=generator), y


def main(folder: str) -> None:
    """Immunize, export, and load again without immunis."""
    primary = Task(images(200, 4, seed=1), images(100, 4, seed=2), "own")
    harmful = Task(images(600, 3, seed=3), images(100, 3, seed=4), "harmful")
    model = timm.create_model("resnet10t", num_classes=4).eval()
    result = immunize(
        model,
        primary,
        harmful,
        weight=3.0,  # leave both out for a real run: weight and length are then found for you
        training={"steps": 10, "batch": 32, "harmful_batch": 540, "evaluate": 2},
    )
    rho = result.record.figures["rho"]
    print(f"harmful labels a linear probe explains: {rho['before']:.2f} -> {rho['after']:.2f}")
    export(result.model, result.record, folder)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = primary.test.first(2)
    print("loads in plain timm:", bool(torch.allclose(again(x), result.model(x), atol=1e-5)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "immunis-runs/timm-resnet")
