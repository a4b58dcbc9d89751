"""Train on without labels: two views of an image should look alike, then probe.

VICReg (Bardes et al. 2022) on the attacker's images: invariance between views, and variance and
covariance terms that keep the features from collapsing.
"""

import torch
from torch import Tensor
from torch.nn import functional

from immunis.attacks.contract import Arena, Attack, Made, NotApplicableError, Searched, Settings
from immunis.attacks.reading import readings, reread
from immunis.attacks.retrain import retrain
from immunis.data.transforms import cropped

LEAST = 0.5  # of an image's side that a crop shows


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random crop of each image at full size, flipped at random, of another contrast."""
    n = len(images)
    draw = torch.rand(5, n, generator=generator).to(images)
    sides = (LEAST + (1 - LEAST) * draw[0]).expand(2, n)
    crops = cropped(images, sides, 2 * draw[1:3] - 1, draw[3] < 0.5)
    mean = crops.mean((1, 2, 3), keepdim=True)
    return mean + (0.6 + 0.8 * draw[4])[:, None, None, None] * (crops - mean)


def vicreg(one: Tensor, other: Tensor) -> Tensor:
    """Return 25·‖z − z'‖²/D plus, for each view, 25·hinge(1 − σ) and the squared covariances/D."""
    total = 25 * functional.mse_loss(one, other)
    for z in (one, other):
        total = total + 25 * functional.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()
        moments = torch.cov(z.T).reshape(z.shape[1], -1)
        total = total + (moments - moments.diag().diag()).square().sum() / z.shape[1]
    return total


def features(arena: Arena, settings: Settings) -> Made:
    """Train the whole extractor on both views of each image."""
    inputs, fit = arena.train.inputs, arena.rows[0]
    if inputs.ndim != 4:
        raise NotApplicableError("the inputs are not images")
    cut = arena.cut.copy()
    below = [p for p in cut.model.parameters() if p.is_floating_point()]
    if not below:
        raise NotApplicableError("the extractor has no parameters to train")
    cut.model.train()

    def loss(images: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        images = images.to(below[0].dtype)
        one, other = (cut.features(view(images, generator)) for _ in range(2))
        return vicreg(one, other)

    return reread(arena, cut, retrain(arena, cut.model, below, inputs, loss, settings["rate"], fit))


SETTINGS: Searched = {"rate": (1e-4, 1e-5, 1e-3), "read": readings}
ATTACK = Attack(settings=SETTINGS, features=features, retrains=True, place=15)
