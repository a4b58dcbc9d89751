"""A short training run on small tasks, and data sets of a user's own."""

import torch
from torch.utils.data import Dataset

from helpers.networks import small_net, tasks
from immunis.methods import get_method
from immunis.models.find_cut import cut
from immunis.training.loop import fit
from immunis.training.settings import Training

SHORT = Training(steps=8, batch=48, harmful_batch=96, rate=3e-3, evaluate=4)


def whole(model=None, primary=None):
    primary = primary or tasks()[0]
    return cut(model or small_net(), primary.train.first(2), primary.outputs)


def objective(name, part=None, **settings):
    method = get_method(name)
    if method.searched:
        settings = {method.searched: 10.0, **settings}
    return method.objective(method.configure(settings, network=True), part or whole())


def run(name="probe", training=SHORT, settings=None, **more):
    primary, harmful = tasks()
    return fit(whole(), objective(name, **(settings or {})), primary, harmful, training, **more)


def states_equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.values(), b.values(), strict=True))


def with_a_scaler(start):
    """Fabric with the loss scaler that an accelerator's half precision has."""

    def fabric(self):
        made = start(self)
        plugin = made.strategy.precision
        plugin.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        return made

    return fabric


class Pairs(Dataset):
    """Rows and labels one by one, as a user's own data set."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Plain(Pairs):
    """A task's training rows one by one."""

    def __init__(self, task):
        super().__init__(*task.train.tensors())


class Broken(Plain):
    """Some rows cannot be read."""

    def __init__(self, task, rows, error):
        super().__init__(task)
        self.rows, self.error = rows, error

    def __getitem__(self, index):
        if index in self.rows:
            raise self.error
        return super().__getitem__(index)
