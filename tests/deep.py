"""Small networks and image tasks for the tests of deep methods."""

import torch
from torch import nn

from immunis import Task


def small_net(classes=4, seed=0):
    """Two convolutional stages with BatchNorm, 16 features, a head."""
    torch.manual_seed(seed)
    stage = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        stage,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    ).eval()


def image_task(n=200, classes=4, seed=1, name="images", size=8):
    """Noisy copies of one prototype a class."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(classes, 3, size, size, generator=generator)

    def part(count):
        y = torch.arange(count) % classes
        return prototypes[y] + torch.randn(count, 3, size, size, generator=generator), y

    return Task(part(n), part(n // 2), name)


def tasks():
    """A primary task of four classes and a harmful one of five."""
    return image_task(name="primary"), image_task(150, 5, seed=2, name="harmful")
