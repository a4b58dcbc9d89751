"""Arenas on which every attack must succeed."""

import numpy as np
import torch

from helpers.networks import Residual, Tokens, flat_network
from immunis.attacks.arrays import Data, Samples
from immunis.attacks.contract import Arena
from immunis.attacks.search import curves
from immunis.models.find_cut import cut

# need BatchNorm, positions or images, which the flat network lacks
IMAGES = {"batchnorm_only", "renormalise", "maps", "attention_pool", "augmented", "adapt"}
IMAGES |= {"self_supervised"}
TOKENS = {"class_token"}


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


def halves(seed, n=200):
    """The left half is above the right one, or below: the mean says nothing."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = rng.normal(size=(n, 2, 8, 8)).astype(np.float32)
    x[:, 0] += np.where(np.arange(8) < 4, 1.0, -1.0) * (2 * y - 1)[:, None, None]
    return x, y


def token_data(n=150, seed=0):
    """Four tokens a sample, the first of which tells its class."""
    x, y = separable(n, seed)
    return np.pad(x[:, None], ((0, 0), (0, 3), (0, 0))), y


def data_for(name):
    return image_data if name in IMAGES else token_data if name in TOKENS else separable


def arena_for(attack, budget=200, seed=0, model=None, data=None, kind="classification", **more):
    if data is None:
        data = data_for(attack.name)
    train, test = data(seed=10), data(seed=11)
    torch.manual_seed(1)
    if model is None and attack.name in IMAGES | TOKENS:
        model = (Residual() if attack.name in IMAGES else Tokens(classes=3)).eval()
    elif model is None:
        model = flat_network(train[0].shape[1])
    whole = cut(model, torch.from_numpy(train[0][:2]), outputs=3)
    cache = {}
    for layer in attack.layers(whole):
        with torch.no_grad():
            cache[layer] = tuple(
                whole.features(torch.from_numpy(part[0]).to(whole.example), layer).numpy()
                for part in (train, test)
            )
    outputs = 3 if kind == "classification" else train[1].shape[1]
    same = Samples(kind, outputs, Data(*train), Data(*test))
    parts = (Data(part[0], np.arange(len(part[0])) % 3) for part in (train, test))
    primary = Samples("classification", 3, *parts)
    return Arena(
        whole,
        kind,
        outputs,
        Data(*train),
        Data(*test),
        cache,
        budget=budget,
        seed=seed,
        **{"harmless": same, "primary": primary, **more},
    )


def curve(attack, arena, settings):
    """Return the scored steps of an attack with one choice of settings."""
    return curves(attack, arena, [settings])[0]
