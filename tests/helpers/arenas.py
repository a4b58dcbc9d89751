"""Arenas on which every attack must succeed."""

import numpy as np
import torch

from helpers.networks import Residual, flat_network
from immunis.attacks.contract import Arena, Data, Samples
from immunis.models.find_head import cut

IMAGES = {"batchnorm_only", "renormalise"}  # need BatchNorm, which the flat network lacks


def separable(n=150, seed=0, classes=3, d=6):
    """Clusters far apart: every attack that trains at all must solve this."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = 4 * np.eye(classes, d)
    return (centres[labels] + 0.3 * rng.normal(size=(n, d))).astype(np.float32), labels


def image_data(n=150, seed=0):
    x, y = separable(n, seed)
    image = np.zeros((n, 1, 8, 8), np.float32)
    image[:, 0, :2, :3] = x.reshape(n, 2, 3)
    image[:, 0] += x[:, :1, None] * (np.arange(8) < 4) + x[:, 1:2, None] * (np.arange(8) >= 4)
    return image, y


def arena_for(attack, budget=200, seed=0, model=None, data=None, kind="classification", **more):
    if data is None:
        data = image_data if attack.name in IMAGES else separable
    train, test = data(seed=10), data(seed=11)
    torch.manual_seed(1)
    if model is None:
        model = Residual().eval() if attack.name in IMAGES else flat_network(train[0].shape[1])
    whole = cut(model, torch.from_numpy(train[0][:2]), outputs=3)
    cache = {}
    for layer in attack.layers(whole):
        with torch.no_grad():
            cache[layer] = tuple(
                whole.features(torch.from_numpy(part[0]).to(whole.example), layer).numpy()
                for part in (train, test)
            )
    outputs = 3 if kind == "classification" else train[1].shape[1]
    return Arena(
        whole, kind, outputs, Data(*train), Data(*test), cache, budget=budget, seed=seed,
        harmless=Samples(kind, outputs, Data(*train), Data(*test)), **more,
    )  # fmt: skip
