"""Changes to batches on their device: scaling of pixels, random crops, flips and colours, mixup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Channels = tuple[float, float, float]
Scaling = Literal["imagenet", "clip", "inception"] | tuple[Channels, Channels]
SCALINGS = {  # mean and deviation of each channel, as timm's models expect
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
SIZE = 224  # default width and height of images


def mean_and_deviation(scaling: Scaling) -> tuple[Channels, Channels]:
    """Return the mean and the deviation of each channel that a scaling means."""
    return SCALINGS[scaling] if isinstance(scaling, str) else scaling


def scaling_of(mean: Sequence[float], deviation: Sequence[float]) -> Scaling:
    """Return a scaling by its name if it has one, else as mean and deviation."""
    own: Any = (tuple(map(float, mean)), tuple(map(float, deviation)))
    named: dict[Any, Any] = {known: name for name, known in SCALINGS.items()}
    return named.get(own, own)


def normalised(pixels: Tensor, scaling: Scaling = "imagenet") -> Tensor:
    """Return uint8 pixels (…, 3, H, W) as float32 ``(p/255 − mean)/deviation`` of each channel."""
    mean, std = (
        torch.tensor(v, device=pixels.device)[:, None, None] for v in mean_and_deviation(scaling)
    )
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


def cropped(
    images: Tensor,
    sides: Tensor,
    place: Tensor,
    flip: Tensor,
    mode: str = "bilinear",
    padding: str = "reflection",
) -> Tensor:
    """Return a part of each image (n, C, H, W) at full size, mirrored where ``flip`` (n) is True.

    ``sides`` (2, n) are the part's width and height as shares of the image's. ``place`` (2, n) says
    where it lies, from −1 (left, top) to 1.
    """
    theta = sides.new_zeros(len(images), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = torch.where(flip, -sides[0], sides[0]), sides[1]
    theta[:, :, 2] = (place * (1 - sides)).T
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False).to(images)
    return functional.grid_sample(images, grid, mode, padding, align_corners=False)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Zoom in on a random part of images (n, C, H, W), and flip half of them; keep other inputs."""
    if images.ndim != 4:
        return images
    n, device = len(images), images.device
    draw = torch.rand(4, n, generator=generator, device=generator.device).to(device)
    sides = (0.6 + 0.4 * draw[0]).expand(2, n)
    return cropped(images, sides, 2 * draw[1:3] - 1, draw[3] < 0.5)


def coloured(images: Tensor, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast and saturation of each image (n, C, H, W) by up to 40%.

    Brightness moves by a share of the image's own deviation, so the scale of pixels is free.
    """
    draw = torch.rand(3, len(images), 1, 1, 1, generator=generator, device=generator.device)
    brightness, contrast, saturation = (0.8 * draw - 0.4).to(images)
    mean = images.mean((1, 2, 3), keepdim=True)
    deviation = images.std((1, 2, 3), keepdim=True)
    grey = images.mean(1, keepdim=True)
    images = grey + (1 + saturation) * (images - grey)
    return mean + (1 + contrast) * (images - mean) + brightness * deviation
