"""Small networks and image tasks for the tests of deep methods."""

import copy

import torch
from torch import nn

from immunis import Task
from immunis.training.balance import balanced_weights
from immunis.training.simulated import attack
from immunis.training.step import add_gradient, clear, values_of


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


class Residual(nn.Module):
    """A small convolutional network in stages, with BatchNorm and a head."""

    def __init__(self, classes=3):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        x = self.layer2(self.layer1(self.norm(self.stem(x)).relu()))
        return self.fc(x.mean((2, 3)))


def flat_network(d=6, classes=3):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, classes)
    ).eval()


def add_gradients(run, rows):
    """Leave a training step's gradient in place; return the values of its terms."""
    run.weights = run.weights or balanced_weights(run, rows)
    clear(run)
    terms = attack(run, rows)
    terms |= add_gradient(run, rows, run.objective.terms, run.weights)
    return values_of(terms)


class Tokens(nn.Module):
    """A container of blocks, as in a transformer, with a parameter of its own."""

    def __init__(self, classes=2):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 6))
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])
        self.head = nn.Linear(6, classes)

    def forward(self, x):
        x = x + self.token
        for block in self.blocks:
            x = torch.relu(block(x)) + x
        return self.head(x.mean(1))


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 3)).eval()


class Encoder(nn.Module):
    """As transformers has it: a list of blocks inside a module, and positions of their own."""

    def __init__(self):
        super().__init__()
        self.embeddings, self.positions = nn.Embedding(10, 6), nn.Embedding(3, 6)
        self.layer = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        z = self.embeddings(x) + self.positions(torch.arange(3))[None]
        for layer in self.layer:
            z = z + torch.tanh(layer(z))
        return z


class Turned(nn.Module):
    """Blocks that have their samples second, as PyTorch's transformers do by default."""

    def __init__(self):
        super().__init__()
        self.proj, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        z = self.proj(x).transpose(0, 1)
        for block in self.blocks:
            z = z + torch.tanh(block(z))
        return self.head(z.mean(0))


def whole_again(model, original, rows):
    """A copy of the original with the weights of a network that kept some rows of its head."""
    found, own = copy.deepcopy(original), model.state_dict()
    state = found.state_dict()
    assert own.keys() == state.keys(), "the two networks have other keys"
    for name, values in own.items():
        if values.shape == state[name].shape:
            state[name] = values
        else:
            state[name] = state[name].index_copy(0, torch.tensor(rows), values)
    found.load_state_dict(state)
    return found.eval()
