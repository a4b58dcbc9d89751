"""A training uses one thread for small work."""

import torch
from torch import nn

from helpers.tasks import make_task
from immunis.models.find_cut import cut
from immunis.training.settings import Hardware, Training
from immunis.training.threads import on_few_threads, work_of_step


def network(width):
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3)).eval()


def threads_in(width, **hardware):
    task, seen = make_task(80, seed=1), []

    def train(*_, **__):
        seen.append(torch.get_num_threads())

    whole, before = cut(network(width), task.train.first(2), 3), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        on_few_threads(train)(whole, None, task, None, Training(steps=1), Hardware(**hardware))
        return seen[0], torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def test_small_steps_have_one_thread_and_large_ones_all():
    assert threads_in(16) == (1, 2)
    assert threads_in(16, device="cuda") == (2, 2)  # an accelerator does the work
    assert threads_in(10_000) == (2, 2)


def test_the_work_of_a_step_is_counted_from_its_rows():
    task = make_task(80, seed=1)
    whole = cut(network(16), task.train.first(2), 3)
    few, many = (
        work_of_step(whole, task, Training(steps=1, batch=n, harmful_batch=n)) for n in (10, 20)
    )
    assert many == 2 * few == 3 * 2 * (5 * 16 + 16 * 3) * 40
