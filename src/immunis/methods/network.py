"""Immunize a network: train some of its layers on a method's objective, and measure the change."""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.distributed import world
from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.data.loader import PER_DIMENSION, SAMPLES, Stream, spread
from immunis.data.task import Task, target_matrix
from immunis.methods import get_method
from immunis.models.cut import Cut, logits_of, run_model
from immunis.models.find_head import cut
from immunis.models.stages import feeds, parameters_below
from immunis.theory.gram import Gram, check_pair, gram_of
from immunis.theory.measure import data_figures, spectrum_figures
from immunis.theory.rho import rho_of_gram
from immunis.theory.rir import rir
from immunis.theory.scores import class_scores, score
from immunis.theory.spectrum import quiet_spectrum
from immunis.training.hardware import Hardware, hardware_of
from immunis.training.loop import Fit, fit
from immunis.training.settings import Training, training_of

BATCH = 256


@dataclass(frozen=True)
class NetworkRun:
    """What a network's record is made from."""

    before: Cut
    after: Cut
    fit: Fit
    tasks: tuple[Task, Task]
    settings: Mapping[str, Any]
    hardware: Hardware
    workers: int
    seed: int
    seconds: float

    def record(self) -> Record:
        """Measure the run: RIR_θ₀ (paper, eq. 11), ρ and the primary score, before and after."""
        primary, harmful = self.tasks
        device = "cuda" if self.hardware.device != "cpu" and torch.cuda.is_available() else "cpu"
        moments, scores, classes = {}, {}, {}
        for when, whole in (("before", self.before), ("after", self.after)):
            placed = whole.on(device)
            moments[when] = (
                feature_gram(placed, primary, self.workers),
                feature_gram(placed, harmful, self.workers),
            )
            scores[when], classes[when] = _scores(placed, primary, self.workers)
        spectra = {
            role: {when: quiet_spectrum(pair[index]) for when, pair in moments.items()}
            for index, role in enumerate(("primary", "harmful"))
        }
        kappas = {
            role: (pair["before"].condition_number, pair["after"].condition_number)
            for role, pair in spectra.items()
        }
        return Record(
            kind="immunize",
            name=f"{primary.name} / {harmful.name}: {self.settings['method']}",
            figures={
                "rir": rir(**kappas).figures,
                "ceiling": None,  # known for linear extractors only
                "rir_against_inputs": None,
                "ceiling_against_inputs": None,
                "rho": {when: rho_of_gram(pair[1]) for when, pair in moments.items()},
                "primary_score": {**scores, "split": "test" if primary.test else "train"},
                "per_class": {"classes": primary.class_names, **classes},
                "exact_head": False,
                "spectra": {
                    role: {when: spectrum_figures(s) for when, s in pair.items()}
                    for role, pair in spectra.items()
                },
                "details": {
                    "history": self.fit.history,
                    "best_step": self.fit.best_step,
                    "steps": self.fit.steps,
                    "weights": self.fit.weights,
                    "notes": self.fit.notes,
                    "training_seconds": self.fit.seconds,
                    "processes": world(),
                    "skipped": {t.name: sorted(t.train.corrupt) for t in self.tasks},
                },
            },
            settings={**self.settings, "hardware": dataclasses.asdict(self.hardware)},
            data=data_figures(primary=primary, harmful=harmful),
            seed=self.seed,
            seconds=self.seconds,
        )


def defend(
    model: nn.Module,
    primary: Task,
    harmful: Task,
    method: str,
    settings: Mapping[str, Any],
    training: Training | Mapping[str, Any] | None = None,
    hardware: Hardware | Mapping[str, Any] | None = None,
    *,
    head: str | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    resume: bool = False,
    wandb: str | None = None,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> tuple[nn.Module, nn.Linear, NetworkRun]:
    """Train a copy of a network as a method says; see ``immunize`` for the arguments."""
    began = time.perf_counter()
    chosen = get_method(method)
    configured = chosen.configure(settings, network=True)
    how = training if isinstance(training, Training) else training_of(training or {})
    where = hardware if isinstance(hardware, Hardware) else hardware_of(hardware or {})
    check_pair(primary, harmful)
    if primary is harmful:
        raise InputError("primary and harmful are one and the same task; expected two.")
    if not isinstance(model, nn.Module):
        raise InputError(f"expected a network (nn.Module) to train, got {type(model).__name__}.")
    if any("_orig_mod" in name.split(".") for name, _ in model.named_modules()):
        raise InputError(
            "the model, or a part of it, is under torch.compile. Give the plain one (._orig_mod); "
            "--compile, or Hardware(compile=True), compiles it for training."
        )
    for name, parameter in model.named_parameters():
        if parameter.is_meta or isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(
                f"the model's {name} has no values yet. Load its weights, or run a lazy model once."
            )
        if parameter.dtype == torch.float16:
            raise InputError(
                f"the model's {name} is in float16, in which a step is lost or overflows. Call "
                ".float() on the model; precision '16-mixed' trains it in half precision."
            )
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(f"the model's {name} holds NaN or infinities; load other weights.")
    try:
        plain = copy.deepcopy(model).eval()
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"the model cannot be copied: {str(error).splitlines()[0][:200]} It must not keep what "
            "a forward pass computed; of weight_norm, take that of nn.utils.parametrizations."
        ) from error
    example = primary.train.first(2)
    whole = cut(plain, example, primary.outputs, head)
    answers = logits_of(run_model(plain, example))
    if whole.head is None:
        linear = [n for n, m in plain.named_modules() if isinstance(m, nn.Linear)]
        last = answers.shape[-1]
        other = cut(plain, example, last).head
        larger = (
            f" It ends in {other!r} with {last}: if the labels of {primary.name} are some of "
            f"those, say Task(..., classes={last})."
        )
        told = larger if other is not None and primary.kind == "classification" else ""
        raise InputError(
            f"no linear head with {primary.outputs} outputs ends the model, so its primary loss "
            f"cannot be kept.{told} Name it with head= (linear layers: "
            f"{', '.join(linear) or 'none'}), or give one: head=nn.Linear(features, "
            f"{primary.outputs})."
        )
    if answers.ndim != 2:
        raise InputError(
            f"the model answers with shape {tuple(answers.shape)}; expected one row of "
            f"{primary.outputs} outputs for each sample."
        )
    if whole.bypasses_head:
        raise InputError(
            f"the model's answers do not come from its head {whole.head!r} (of several the first "
            "is taken). Wrap it in a module that returns what that head gives."
        )
    trained = set(whole.parameters_named(how.layers))
    below = parameters_below(whole, example)
    owners = {name.rpartition(".")[0] for name in trained}  # where autograd does not see them
    if not (
        below & {id(p) for n, p in plain.named_parameters() if n in trained}
        or any(feeds(plain, name, lambda: whole.features(example)) for name in owners)
    ):
        raise InputError(
            f"the features do not come through {', '.join(how.layers)}: training it would change "
            "nothing. Name layers below the head."
        )
    if primary.kind == "classification" and _are_shares(answers):
        raise InputError(
            "the model answers with probabilities (each row is positive and sums to 1); its loss "
            "needs what the softmax is taken of. Give the model without its softmax."
        )
    assert chosen.objective is not None
    identity = json.dumps([method, dataclasses.asdict(configured)])
    result = fit(
        whole, chosen.objective(configured, whole), primary, harmful, how, where,
        seed=seed, folder=folder, resume=resume, wandb=wandb, identity=identity,
        progress=progress,
    )  # fmt: skip
    after = dataclasses.replace(whole, model=result.model)
    run = NetworkRun(
        whole, after.copy(), result, (primary, harmful),
        {
            "method": method, **dataclasses.asdict(configured), "training": dataclasses.asdict(how),
        },
        where, how.workers, seed, time.perf_counter() - began,
    )  # fmt: skip
    device = next(model.parameters()).device
    new = result.model.to(device)
    for mine, given in zip(new.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(given.requires_grad)
    target = new.get_submodule(whole.head)
    assert isinstance(target, nn.Linear)
    return new, target, run


def _are_shares(answers: Tensor) -> bool:
    """Whether each row of answers is positive and sums to one."""
    sums = answers.double().sum(1)
    return bool((answers >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3))


@torch.no_grad()
def feature_gram(whole: Cut, task: Task, workers: int = 0) -> Gram:
    """Moments of a network's features over a task's training data, streamed.

    Over at most 16,384 samples, or eight per dimension, evenly spread over the data.
    """
    stream = Stream(task, BATCH, device=whole.example.device, workers=workers)
    rows = spread(stream.rows, max(SAMPLES, PER_DIMENSION * whole.width))
    total: Gram | None = None
    for inputs, labels in stream.subset(rows, BATCH):
        features = whole.features(inputs).float().cpu()
        targets = target_matrix(labels.cpu(), task.kind, task.outputs)
        if total is None:
            total = gram_of(features, targets)
        else:
            total.add(features, targets)
    assert total is not None
    return total


@torch.no_grad()
def _scores(whole: Cut, task: Task, workers: int) -> tuple[float, list[float]]:
    """Score of the model's own answers, by class too; on training data where there is no other."""
    stream = Stream(
        task, BATCH, split=task.test or task.train, device=whole.example.device, workers=workers
    )
    parts = stream.subset(stream.rows, BATCH)
    found = [(whole.answers(x).float().cpu(), y.cpu()) for x, y in parts]
    answers, labels = (torch.cat(column) for column in zip(*found, strict=True))
    known = task.kind == "classification"
    by_class = class_scores(answers.argmax(1), labels, task.outputs) if known else []
    return score(answers, labels, task.kind), by_class
