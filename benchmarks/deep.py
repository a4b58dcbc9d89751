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
from immunis.models.find_cut import cut
from immunis.models.with_features import WithFeatures
from immunis.theory.probes import rho
from immunis.theory.regularizers import feature_hessian, r_ill, r_well
from immunis.training.balance import balanced_weights
from immunis.training.objective import SUPERVISED, Objective, Terms, View
from immunis.training.setup import TrainingRun, answers_of
from immunis.training.simulated import attack
from immunis.training.step import Rows, add_gradient, clear

CLASSES, HARMFUL_CLASSES, LIMIT = 100, 196, 1.3
METHODS = "probe", "condition"
NETWORKS = {  # by label: timm's name, options, size
    "ResNet-18 at 64, D = 512": ("resnet18", {}, 64),
    "ResNet-18 at 224, D = 512": ("resnet18", {}, 224),
    "ViT-B/8 at 64, D = 768": ("vit_base_patch16_224", {"img_size": 64, "patch_size": 8}, 64),
}


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
    name, options, side = NETWORKS[label]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=CLASSES, **options).eval()
    whole = cut(model, torch.zeros(2, 3, side, side), CLASSES)
    if fabric.device.type == "cuda":
        model.to(memory_format=torch.channels_last)
    teacher = answers_of(whole, fabric)
    body = [p for key, p in model.named_parameters() if not key.startswith(f"{whole.head}.")]
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

    def step(objective: Objective) -> float:
        asked = teacher if objective.teacher else None
        tapped = WithFeatures(whole, objective.layers)
        run = TrainingRun(fabric, fabric.setup(tapped), objective, body, teacher=asked)

        def gradients() -> None:
            rows = Rows(primary, (harmful[0], encode(harmful[1])))
            run.weights = run.weights or balanced_weights(run, rows)
            clear(run)
            attack(run, rows)
            add_gradient(run, rows, objective.terms, run.weights)

        time = median_ms(gradients, device, repeats)
        tapped.close()
        return time

    found = {}
    for what, settings in {"probe": {"weight": 3.0}, "condition": {}}.items():
        method = get_method(what)
        goal = method.objective(method.configure(settings, network=True), whole)
        found[f"without {what}"] = step(without(goal))
        found[what] = step(goal)
    targets = encode(harmful[1])
    with torch.no_grad():
        features = {role: whole.features(x[0]) for role, x in (("p", primary), ("h", harmful))}
    found["rho alone"] = median_ms(lambda: rho(features["h"], targets), device, repeats)
    hessians = {role: feature_hessian(z) for role, z in features.items()}
    found["r_well alone"] = median_ms(lambda: r_well(hessians["p"]), device, repeats)
    found["r_ill alone"] = median_ms(lambda: r_ill(hessians["h"]), device, repeats)
    found["teacher alone"] = median_ms(lambda: teacher(primary[0]), device, repeats)
    return found


def without(objective: Objective) -> Objective:
    """The same step without the regularizer: the harmful features still take part in the pass."""

    def terms(view: View) -> Terms:
        idle = sum(0.0 * z.float().sum() for z in view.harmful.values())
        found = {SUPERVISED: view.supervised + idle}
        return found | ({"distillation": view.distillation} if objective.teacher else {})

    kept = {k: v for k, v in objective.weights.items() if k in (SUPERVISED, "distillation")}
    return dataclasses.replace(objective, terms=terms, weights=kept)


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
    for label in NETWORKS:
        sizes = (896, 2048) if fast else (8, 16)
        found = steps(label, fabric, sizes, 20 if fast else 1)
        figures["steps"][label] = {"sizes": sizes, **found}
        for method in (name for name in METHODS if name in found):
            ratio = found[method] / found[f"without {method}"]
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
