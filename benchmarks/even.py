"""Rows of one length: what they give an attacker of a small ViT, and what takes it back.

python benchmarks/even.py Flowers|Cars [record.json] [--data FOLDER]

A ViT of four blocks on Tiny-ImageNet-100 at 16x16 pixels, defended by ``probe`` with the terms of
our recipes for ViTs: without a look at such rows, with ``even`` and ``near``, and with ``recall``;
and audited. Needs timm. An hour on two cores.
"""

from __future__ import annotations

import argparse
import warnings

import timm
import torch
from torch import nn

from carry_over import HARMFUL, SIZE, small_tasks
from immunis import audit
from immunis.methods import get_method
from immunis.models.find_head import cut
from immunis.report.tables import audit_table
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.settings import training_of

SEEDS = 3
KEPT = {"collapse": 0.3, "keep": 1.0, "hold": 0.1}
EVEN = KEPT | {"even": True}
VARIANTS = {
    "probe-held": KEPT | {"weight": 10.0, "lift": 192, "lift_ridge": 10.0},
    "probe-near": EVEN | {"weight": 10.0, "near": 15.0},
    "probe-recall": EVEN | {"weight": 3.0, "near": 9.0, "recall": True},
}
PRETRAINING = {"layers": ["*"], "epochs": 9, "batch": 256, "augment": True, "evaluate": 3}
TRAINING = {
    "layers": ["*"], "steps": 500, "batch": 192, "harmful_batch": 640, "augment": True, "mix": True,
    "evaluate": 1,
}  # fmt: skip
ATTACKS = ("ridge", "logistic", "whiten", "mlp", "knn", "kernel")


def network() -> nn.Module:
    """Four blocks, 16 patches, 96 features."""
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=SIZE, patch_size=4, embed_dim=96, depth=4, num_heads=3,
        num_classes=100,
    ).eval()  # fmt: skip


def main() -> None:
    """Train, audit, print, and save the audit's record if a path is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", choices=HARMFUL)
    parser.add_argument("record", nargs="?")
    parser.add_argument("--data")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # what they say is measured here
    tasks = small_tasks(HARMFUL[given.sample], given.data)
    primary, probe = tasks.primary, get_method("probe")
    whole = cut(network(), primary.train.first(2), primary.outputs)
    start = fit(whole, supervised_only(), primary, None, training_of(PRETRAINING)).model
    whole = cut(start, primary.train.first(2), primary.outputs)
    models: dict = {"original": start}
    for label, settings in VARIANTS.items():
        objective = probe.objective(probe.configure(settings, network=True), whole)
        models[label] = [
            fit(whole, objective, primary, tasks.harmful, training_of(TRAINING), seed=seed).model
            for seed in range(SEEDS)
        ]
        print(label, "trained", flush=True)
    result = audit(
        models, primary, tasks.attacker, attacks=ATTACKS, defender=tasks.harmful,
        effort={"seeds": SEEDS, "budget": 200},
    )  # fmt: skip
    record = result.record.with_settings(
        pretraining=PRETRAINING, training=TRAINING, variants=VARIANTS
    )
    print(audit_table(record).markdown())
    if given.record:
        print("written:", record.save(given.record))


if __name__ == "__main__":
    main()
