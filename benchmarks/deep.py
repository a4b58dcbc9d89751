"""What a regularizer adds to a training step, and whether decoding keeps up with the device.

python benchmarks/deep.py [record.json] [--device cuda]

Each ratio is against the same step (same batches, same forward and backward passes) without
the regularizer, in the same run. Needs timm. On a CPU the batches are small: a smoke test.
"""

from __future__ import annotations

import dataclasses
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import timm
import torch
from lightning.fabric import Fabric
from PIL import Image

from common import arguments, save
from immunis.data.loader import Stream
from immunis.data.sources.image_dataset import Images, Item
from immunis.data.task import Task
from immunis.methods import get_method
from immunis.methods.probe import hold
from immunis.models.find_head import cut
from immunis.models.teacher import Teacher, WithFeatures
from immunis.recipes import load_recipe
from immunis.theory.feature_maps import even, fourier, white
from immunis.theory.regularizers import feature_hessian, r_ill, r_well
from immunis.theory.rho import nu, rho
from immunis.training.objective import SUPERVISED, Objective
from immunis.training.setup import TrainingRun
from immunis.training.step import Rows, add_gradient, attack, balanced_weights, clear

CLASSES, HARMFUL_CLASSES, LIMIT = 100, 196, 1.3
METHODS = "probe", "condition", "probe as shipped"
RESNET, VIT = "tiny-imagenet-cars-resnet18", "tiny-imagenet-cars-vit"
NETWORKS = {  # by label: timm's name, options, trained layers, size, whose settings ship, D
    "ResNet-18 at 64, D = 512": ("resnet18", {}, ["layer3", "layer4"], 64, RESNET, 512),
    "ResNet-18 at 224, D = 512": ("resnet18", {}, ["layer3", "layer4"], 224, RESNET, 512),
    "ViT-B/8 at 64, D = 768": (
        "vit_base_patch16_224", {"img_size": 64, "patch_size": 8}, ["blocks.11", "norm"], 64, VIT,
        768,
    ),
}  # fmt: skip


def median_ms(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median wall time of a call, after a warm-up, with the device synchronised."""

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    times = []
    for index in range(repeats + 3):
        sync()
        start = time.perf_counter()
        call()
        sync()
        if index >= 3:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def steps(label: str, fabric: Fabric, sizes: tuple[int, int], repeats: int) -> dict:
    """Milliseconds of a step with each objective, and of the regularizers alone."""
    name, options, layers, side, recipe, _ = NETWORKS[label]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=CLASSES, **options).eval()
    whole = cut(model, torch.zeros(2, 3, side, side), CLASSES)
    chosen = set(whole.parameters_named(layers))
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key in chosen or key.startswith(f"{whole.head}."))
    if fabric.device.type == "cuda":
        model.to(memory_format=torch.channels_last)
    teacher, tapped = Teacher(whole, fabric), fabric.setup(WithFeatures(whole))
    body = [p for key, p in model.named_parameters() if key in chosen]
    device = fabric.device
    primary = (
        torch.randn(sizes[0], 3, side, side, device=device),
        torch.randint(CLASSES, (sizes[0],), device=device),
    )
    harmful = (
        torch.randn(sizes[1], 3, side, side, device=device),
        torch.randint(HARMFUL_CLASSES, (sizes[1],), device=device),
    )

    def encode(labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(labels, HARMFUL_CLASSES).double()

    teacher.share(model, primary[0])

    def step(objective: Objective) -> float:
        asked = teacher if objective.teacher else None
        run = TrainingRun(fabric, tapped, objective, body, teacher=asked)

        def gradients() -> None:
            rows = Rows(primary, (harmful[0], encode(harmful[1])))
            run.weights = run.weights or balanced_weights(run, rows)
            clear(run)
            attack(run, rows)
            add_gradient(run, rows, objective.terms, run.weights)

        return median_ms(gradients, device, repeats)

    def plain(view):  # the harmful features take part, so that their backward pass is run too
        return {SUPERVISED: view.supervised + 0.0 * view.harmful[""].float().sum()}

    methods = {"probe": {"distillation": 0.0}, "condition": {}}
    if sizes[0] > whole.width:  # as hold needs
        own = load_recipe(recipe).method
        shipped = {k: v for k, v in own.items() if k not in ("name", "label", "training")}
        methods["probe as shipped"] = shipped
    found = {"without": step(Objective(plain))}
    for what, settings in methods.items():
        method = get_method(what.split()[0])
        configured = method.configure(settings, network=True)
        found[what] = step(method.objective(configured, whole))
    with torch.no_grad():
        features = {
            role: tapped(batch[0])[1][""].float()
            for role, batch in (("p", primary), ("h", harmful))
        }
    targets = encode(harmful[1])
    found["rho alone"] = median_ms(lambda: rho(features["h"], targets), device, repeats)
    hessians = {role: feature_hessian(z) for role, z in features.items()}
    found["r_well alone"] = median_ms(lambda: r_well(hessians["p"]), device, repeats)
    found["r_ill alone"] = median_ms(lambda: r_ill(hessians["h"]), device, repeats)
    for what, call in pieces(features, targets, whole.width).items():
        found[f"{what} alone"] = median_ms(call, device, repeats)
    found["teacher alone"] = median_ms(lambda: teacher(primary[0]), device, repeats)
    found["encoding labels"] = median_ms(lambda: encode(harmful[1]), device, repeats)
    return found


def pieces(
    features: dict[str, torch.Tensor], targets: torch.Tensor, width: int
) -> dict[str, Callable[[], None]]:
    """What `probe` as shipped does to the features besides ρ, each with its backward pass."""
    leaves = {role: z.clone().requires_grad_() for role, z in features.items()}
    before = SimpleNamespace(primary={"": leaves["p"]}, teacher=(None, 0.9 * features["p"]))
    flat = white(features["h"]).requires_grad_()

    def lifted() -> torch.Tensor:
        return rho(fourier(flat, 2 * width, 0.5 / width), targets, 10.0)

    found = {
        "white": lambda: white(leaves["h"]).sum(),
        "lifted rho": lifted,
        "nu": lambda: nu(even(leaves["h"]), targets),
    }
    if len(features["p"]) > width:
        found["hold"] = lambda: hold(before)
    return {what: lambda call=call: call().backward() for what, call in found.items()}


def decoding(fabric: Fabric, workers: int, count: int, size: int) -> dict:
    """Images a second that are decoded, by workers or by the device, read, and taken by a step."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)
    picture = Image.fromarray(blocks).resize((500, 400), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    items = [Item(buffer.getvalue(), i % 2, str(i)) for i in range(count)]

    def speed(images: Images) -> float:
        task = Task(images, name="jpeg", classes=2)
        stream = Stream(task, 128, workers=workers, device=fabric.device)
        batches = stream.batches(0, count // 128)
        next(batches)  # workers have started
        start = time.perf_counter()
        seen = sum(len(inputs) for inputs, _ in batches)
        return seen / (time.perf_counter() - start)

    images = Images(items, size)
    found = {"decoded": speed(images)}
    if fabric.device.type == "cuda":
        found["decoded by the device"] = speed(dataclasses.replace(images, on_device=True))
    with tempfile.TemporaryDirectory() as folder:
        cached = images.cached(folder)
        speed(cached)  # the first pass decodes, and keeps
        found["read from a cache"] = speed(cached)
    model = timm.create_model("vit_base_patch16_224", num_classes=CLASSES).eval()
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key.startswith(("blocks.11", "norm", "head")))
    module = fabric.setup(model)
    inputs = torch.randn(128 if fabric.device.type == "cuda" else 2, 3, 224, 224).to(fabric.device)
    taken = median_ms(lambda: fabric.backward(module(inputs).sum()), fabric.device, 5)
    return {**found, "taken": 1000 * len(inputs) / taken, "workers": workers}


def main() -> None:
    """Run, print, and save a record if a path is given."""
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    fast = given.device == "cuda"
    fabric = Fabric(
        accelerator=given.device, devices=1, precision="bf16-mixed" if fast else "32-true"
    )
    figures: dict = {"steps": {}, "ratios": {}}
    for label, (*_, dimension) in NETWORKS.items():
        sizes = (dimension + 128, 2048) if fast else (8, 16)
        found = steps(label, fabric, sizes, 20 if fast else 1)
        figures["steps"][label] = {"sizes": sizes, **found}
        for method in (name for name in METHODS if name in found):
            ratio = found[method] / found["without"]
            what = f"a step of `{method}`, {label}, against the same without it"
            figures["ratios"][f"{method}, {label}"] = {
                "what": what,
                "ratio": ratio,
                "target": LIMIT,
            }
            print(f"{what}: {ratio:.2f}x (at most {LIMIT}x)")
        print({key: round(value, 2) for key, value in found.items()})
    figures["decoding"] = decoding(fabric, given.workers, 6400 if fast else 512, 224)
    print({key: round(value) for key, value in figures["decoding"].items()}, "images/s")
    name = torch.cuda.get_device_name() if fast else "CPU"
    precision = "bf16-mixed" if fast else "32-true"
    save(given.record, f"deep networks, {name}", figures, device=name, precision=precision)


if __name__ == "__main__":
    main()
