"""The released training of networks: what the paper's code does to ResNet-18 and ViT, and measures.

The whole network is in training mode and in float64. Every BatchNorm, of frozen layers too, uses
and updates the statistics of each batch: twice those of the primary one, once those of the harmful
one. The last stage, all parameters with "norm" in their names, and the head train by SGD with
Nesterov momentum at a constant rate. Nothing stops early. In R_well and R_ill the released code
takes the width of an image for the dimension k, and σ_min is 10⁻⁶ where a batch has fewer rows than
features. IMMA, R_ill only and Opt κ run in the same loop as the paper's text has them. No released
program runs them; the class ``ImmuLoss`` (``utils/train_imagenet.py:53``), which nothing imports,
has other forms (docs/reproduce.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from immunis.core.errors import NumericalError
from immunis.core.jobs import Progress, silent
from immunis.data.loader import Stream
from immunis.data.transforms import Scaling, cropped, mean_and_deviation
from immunis.models.cut import Cut
from immunis.models.with_features import WithFeatures
from immunis.theory.spectrum import REFERENCE_SHIFT

SMOOTHING, HEAD_DECAY = 0.1, 2e-5
AREA, ASPECT, TRIES, JITTER = (0.08, 1.0), (3 / 4, 4 / 3), 10, 0.4  # timm's defaults for training
GREY = (0.299, 0.587, 0.114)
INNER = 1e-3  # length of IMMA's lower step, relative to the parameters
Labelled = tuple[Tensor, Tensor]  # images, classes


@dataclass(frozen=True)
class Settings:
    """A row of the paper's table 4; ``steps`` are its epochs of the harmful task."""

    rate: float
    lambda_primary: float
    lambda_harmful: float
    steps: int
    batch: int = 64


Loss = Callable[[WithFeatures, Labelled, Labelled, Settings], Tensor]
Make = Callable[[Cut, int], Loss]  # of the network and the number of harmful classes


def released_spectrum(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return σ_max, σ_min and ``‖S‖²_F`` of ``S = ZᵀZ`` as the released code computes them.

    σ are the extreme eigenvalues of ``S + 10⁻⁶·I`` above 10⁻⁶. With fewer rows than features the
    least is 10⁻⁶ plus rounding, and the others are those of ZZᵀ. All three are NaN where S is not
    finite.
    """
    rows, width = features.shape
    few = rows < width
    small = features @ features.T if few else features.T @ features
    if not small.isfinite().all():
        nothing = small.new_tensor(math.nan)
        return nothing, nothing, nothing
    values = torch.linalg.eigvalsh(small.cpu()).to(small) + REFERENCE_SHIFT
    floor = values.new_tensor(REFERENCE_SHIFT)
    smallest = floor if few else values[values > floor].min()
    return values[-1], smallest, small.square().sum()


def log_kappa(features: Tensor) -> Tensor:
    """Return ``log κ`` of ``ZᵀZ`` as released: its σ_min is mostly the floor."""
    largest, smallest, _ = released_spectrum(features)
    return largest.log() - smallest.log()


def r_well(features: Tensor, k: int) -> Tensor:
    """Return ``σ_max²/2 − ‖S‖²_F/2k`` (paper, eq. 3), with k as given."""
    largest, _, square = released_spectrum(features)
    return largest**2 / 2 - square / (2 * k)


def r_ill(features: Tensor, k: int) -> Tensor:
    """Return ``1/(‖S‖²_F/2k − σ_min²/2)`` (paper, eq. 8), with k as given."""
    _, smallest, square = released_spectrum(features)
    return 1 / (square / (2 * k) - smallest**2 / 2)


def augmented(images: Tensor, generator: torch.Generator, scaling: Scaling) -> Tensor:
    """Crop, flip and colour images as ``timm.data.create_loader(is_training=True)`` does.

    Of each image a part of 8% to 100% of its area is enlarged, with sides of 3:4 to 4:3. Half are
    flipped. Brightness, contrast and saturation change by up to 40%, in this order.
    """
    n, device = len(images), images.device

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    area = AREA[0] + (AREA[1] - AREA[0]) * draw(TRIES, n)
    low, high = map(math.log, ASPECT)
    aspect = (low + (high - low) * draw(TRIES, n)).exp()
    sides = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()])  # width, height
    first = (sides <= 1).all(0).int().argmax(0)  # of the tries that fit
    sides = sides[:, first, torch.arange(n, device=device)].clamp(max=1)
    flip, place = draw(n) < 0.5, 2 * draw(2, n) - 1
    crops = cropped(images, sides, place, flip, "bicubic", "border")
    mean, std = (images.new_tensor(v)[:, None, None] for v in mean_and_deviation(scaling))
    bright, contrast, colour = (1 + JITTER * (2 * draw(3, n, 1, 1, 1) - 1)).to(images)
    pixels = (bright * (crops * std + mean)).clamp(0, 1)
    weights = images.new_tensor(GREY)[:, None, None]
    grey = (pixels * weights).sum(1, keepdim=True).mean((2, 3), keepdim=True)
    pixels = torch.lerp(grey.expand_as(pixels), pixels, contrast).clamp(0, 1)
    grey = (pixels * weights).sum(1, keepdim=True)
    pixels = torch.lerp(grey.expand_as(pixels), pixels, colour).clamp(0, 1)
    return (pixels - mean) / std


def trained_parameters(cut: Cut) -> list[nn.Parameter]:
    """Freeze all but the last stage, the norms and the head; return those below the head."""
    names = set(cut.parameters_named(()))  # the last stage
    names |= {name for name, _ in cut.model.named_parameters() if "norm" in name}
    head = set(_head(cut).parameters())
    for name, parameter in cut.model.named_parameters():
        parameter.requires_grad_(name in names or parameter in head)
    return [p for name, p in cut.model.named_parameters() if name in names]


def train(
    cut: Cut,
    streams: Sequence[Stream],
    method: str,
    settings: Settings,
    scaling: Scaling = "imagenet",
    seed: int = 0,
    progress: Progress = silent,
) -> Cut:
    """Return a copy of a network, trained as released on the primary and the harmful stream.

    ``method`` is one of ``METHODS``. The copy is in evaluation mode and in the network's own dtype.

    Raises:
        NumericalError: if the loss is not finite.
    """
    whole, dtype = cut.copy(), cut.example.dtype
    whole.model.double().train()
    groups: list[dict[str, Any]] = [
        {"params": trained_parameters(whole)},
        {"params": [*_head(whole).parameters()], "weight_decay": HEAD_DECAY},
    ]
    optimizer = torch.optim.SGD(groups, lr=settings.rate, momentum=0.9, nesterov=True)
    student = WithFeatures(whole)
    loss_of = METHODS[method](whole, streams[1].task.outputs)
    generator = torch.Generator(streams[0].device).manual_seed(seed)
    pairs = zip(*(stream.batches(0, settings.steps) for stream in streams), strict=True)
    try:
        for step, batches in enumerate(pairs, 1):
            primary, harmful = ((augmented(x, generator, scaling), y) for x, y in batches)
            loss = loss_of(student, primary, harmful, settings)
            if not math.isfinite(loss.item()):
                raise NumericalError(f"the loss is not finite at step {step} of {settings.steps}.")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress(method, step / settings.steps)
    finally:
        student.close()
    whole.model.to(dtype).eval()
    return whole


def _head(cut: Cut) -> nn.Linear:
    assert cut.head_layer is not None  # WithFeatures refuses a network without one
    return cut.head_layer


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the released loss: cross-entropy with label smoothing 0.1."""
    return functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING)


def _regularized(terms: Callable[[Tensor, Tensor, Tensor, int, Settings], Tensor]) -> Make:
    """Make a loss of ``terms(loss, Z_P, Z_H, k, settings)``; it runs the primary batch twice."""

    def loss_of(
        student: WithFeatures, primary: Labelled, harmful: Labelled, settings: Settings
    ) -> Tensor:
        with torch.no_grad():
            student(primary[0])
        logits, features = student(primary[0])
        z_p, z_h, k = features[""], student(harmful[0])[1][""], primary[0].shape[-1]
        return terms(cross_entropy(logits, primary[1]), z_p, z_h, k, settings)

    return lambda whole, classes: loss_of


def _imma(whole: Cut, classes: int) -> Loss:
    """Return ``L(D_P, ω, θ*) − L(D_H, w, θ*)`` at ``θ* = θ − c·∇_θL(D_H, w, θ)``, a function of θ.

    The harmful head w reads features of mean length one and takes one step of size one a batch.
    """
    w = whole.example.new_zeros(classes, whole.width)

    def harmful_loss(z: Tensor, labels: Tensor, w: Tensor) -> Tensor:
        return cross_entropy(z / z.detach().norm(dim=1).mean() @ w.T, labels)

    @sdpa_kernel(SDPBackend.MATH)  # the others have no second derivative
    def loss_of(
        student: WithFeatures, primary: Labelled, harmful: Labelled, settings: Settings
    ) -> Tensor:
        nonlocal w
        (x_p, y_p), (x_h, y_h) = primary, harmful
        z = student(x_h)[1][""]
        leaf = w.clone().requires_grad_()
        w = w - torch.autograd.grad(harmful_loss(z.detach(), y_h, leaf), leaf)[0]
        moved = {n: p for n, p in student.named_parameters() if p.requires_grad}
        inner = harmful_loss(z, y_h, w)
        found = torch.autograd.grad(
            inner, list(moved.values()), create_graph=True, allow_unused=True
        )
        steps = {n: g for n, g in zip(moved, found, strict=True) if g is not None}  # ω has none
        size = [
            torch.stack([v.detach().norm() for v in vs]).norm()
            for vs in ([moved[n] for n in steps], steps.values())
        ]
        star = {n: moved[n] - INNER * size[0] / size[1] * g for n, g in steps.items()}
        logits, _ = functional_call(student, star, (x_p,))
        _, features = functional_call(student, star, (x_h,))
        return cross_entropy(logits, y_p) - harmful_loss(features[""], y_h, w)

    return loss_of


METHODS: dict[str, Make] = {
    "r_ill": _regularized(lambda loss, p, h, k, s: s.lambda_harmful * r_ill(h, k)),
    "imma": _imma,
    "opt_kappa": _regularized(lambda loss, p, h, k, s: loss + log_kappa(p) - log_kappa(h)),
    "algorithm_1": _regularized(
        lambda loss, p, h, k, s: (
            loss + s.lambda_primary * r_well(p, k) + s.lambda_harmful * r_ill(h, k)
        )
    ),
}


@torch.no_grad()
def group_ratios(
    before: Cut,
    after: Cut,
    streams: Sequence[Stream],
    scaling: Scaling = "imagenet",
    seed: int = 0,
    groups: int = 20,
) -> dict[str, float]:
    """Return factors (i) and (ii) and RIR_θ₀, means over groups of augmented training rows.

    A group is a batch of the primary and one of the harmful stream; networks are in training mode
    and float64, and κ is the released one (``utils/log.py`` of the released code).

    Raises:
        NumericalError: if features of a group are not finite.
    """
    generator = torch.Generator(streams[0].device).manual_seed(seed)
    networks = [cut.copy() for cut in (before, after)]
    for cut in networks:
        cut.model.double().train()
    ratios = []
    for batches in zip(*(stream.batches(0, groups) for stream in streams), strict=True):
        each = []
        for rows, _ in batches:
            inputs = augmented(rows, generator, scaling)
            old, new = (log_kappa(cut.features(inputs)) for cut in networks)
            each.append(float((new - old).exp()))
        if not all(map(math.isfinite, each)):
            raise NumericalError("the features of a group of training rows are not finite.")
        ratios.append(each)
    primary, harmful = zip(*ratios, strict=True)
    rir = [h / p for p, h in ratios]
    return {"harmful": fmean(harmful), "primary": fmean(primary), "rir": fmean(rir)}
