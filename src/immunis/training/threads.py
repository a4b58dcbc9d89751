"""How many threads a training uses: one for small work."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from immunis.core.state import threads_for
from immunis.data.feed import run_model
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.training.settings import Hardware, Training

R = TypeVar("R")
ROWS = 2  # that are counted


def work_of_step(cut: Cut, primary: Task, training: Training) -> float:
    """Return about how many operations a step takes: forward, and twice as many backward."""
    rows = training.batch + training.harmful_batch
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            run_model(cut.model, primary.train.first(ROWS))
    except Exception:  # the training says what is wrong with the model
        return math.inf
    return 3 * counter.get_total_flops() / ROWS * rows


def on_few_threads(train: Callable[..., R]) -> Callable[..., R]:
    """Make a training on a CPU use one thread if its steps are small."""

    @wraps(train)
    def trained(
        cut: Cut,
        objective: Any,
        primary: Task,
        harmful: Task | None,
        training: Training,
        hardware: Hardware | None = None,
        **more: Any,
    ) -> R:
        here = (hardware or Hardware()).kind == "cpu"
        with threads_for(work_of_step(cut, primary, training) if here else math.inf):
            return train(cut, objective, primary, harmful, training, hardware, **more)

    return trained
