"""Changes to batches on their device: scaling of pixels, random crops and flips, mixup."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Scaling = Literal["imagenet", "clip", "inception"]
SCALINGS = {  # mean and deviation of each channel, as timm's models expect
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
SIZE = 224  # default width and height of images


def normalised(pixels: Tensor, scaling: Scaling = "imagenet") -> Tensor:
    """Return uint8 pixels (…, 3, H, W) as float32 ``(p/255 − mean)/deviation`` of each channel."""
    mean, std = (torch.tensor(v, device=pixels.device)[:, None, None] for v in SCALINGS[scaling])
    return pixels.to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)


def mixed(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return each row and its target mixed with another of the batch (mixup, Zhang et al. 2018).

    ``x ← (1−λ)x + λx′`` and ``y ← (1−λ)y + λy′`` with λ uniform in [0, ½).
    """
    n, device = len(inputs), inputs.device
    share = torch.rand(n, generator=generator, device=device) / 2
    other = torch.randperm(n, generator=generator, device=device)

    def mix(values: Tensor) -> Tensor:
        return values.lerp(values[other], share.to(values).view(n, *[1] * (values.ndim - 1)))

    return mix(inputs), mix(targets)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Zoom in on a random part of images (n, C, H, W), and flip half of them; keep other inputs."""
    if images.ndim != 4:
        return images
    n, device = len(images), images.device
    draw = torch.rand(4, n, generator=generator, device=device)
    scale = 0.6 + 0.4 * draw[0]  # of each side
    mirror = torch.where(draw[3] < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1] = scale * mirror, scale
    theta[:, :, 2] = ((2 * draw[1:3] - 1) * (1 - scale)).T
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(
        images, grid.to(images), mode="bilinear", padding_mode="reflection", align_corners=False
    )
