"""Fine-tuning attacks."""

import dataclasses

import pytest
import torch
from torch import nn

from helpers.arenas import arena_for
from immunis.attacks import ATTACKS, tuning
from immunis.attacks.contract import NotApplicableError, Step
from immunis.attacks.search import curve, search, space_of
from immunis.models.zoo import untrained

F = torch.float64


def test_fine_tuning_moves_only_what_it_says(monkeypatch):
    seen = {}

    def spy(arena, network, trained, settings):
        seen["ids"] = {id(p) for p in trained}
        seen["network"] = network
        return [Step(1, 1, 1.0, lambda: (0.0, 0.0))]

    monkeypatch.setattr("immunis.attacks.finetuning.finetune_last.tune", spy)
    curve(ATTACKS["finetune_last"], arena_for(ATTACKS["finetune_last"]), {})
    last = seen["network"].body.get_submodule("2")
    assert seen["ids"] == {id(p) for p in last.parameters()}


def test_reinitialised_stages_are_drawn_anew(monkeypatch):
    seen = {}

    def spy(arena, network, trained, settings):
        seen["network"] = network
        return [Step(1, 1, 1.0, lambda: (0.0, 0.0))]

    monkeypatch.setattr("immunis.attacks.finetuning.reinit_last.tune", spy)
    arena = arena_for(ATTACKS["reinit_last"])
    curve(ATTACKS["reinit_last"], arena, {"stages": 1, "train": "last"})
    old, new = arena.cut.model, seen["network"].body
    assert torch.equal(old[0].weight, new[0].weight)
    assert not torch.equal(old[2].weight, new[2].weight)
    twins = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)).eval()
    arena = arena_for(ATTACKS["reinit_last"], model=twins)
    curve(ATTACKS["reinit_last"], arena, {"stages": 2, "train": "last"})
    assert not torch.equal(seen["network"].body[1].weight, seen["network"].body[2].weight)


def test_training_from_scratch_is_fine_tuning_the_untrained_control():
    arena = arena_for(ATTACKS["finetune_all"])
    fresh = dataclasses.replace(arena, cut=untrained(arena.cut, 0))
    assert search(ATTACKS["finetune_all"], fresh).points[-1].test > 0.9


def test_running_out_of_memory_halves_the_batch_and_says_so(monkeypatch):
    real = tuning.loss_of

    def small(outputs, labels, kind):
        if len(outputs) > 40:
            raise torch.OutOfMemoryError("pretend")
        return real(outputs, labels, kind)

    monkeypatch.setattr(tuning, "loss_of", small)
    outcome = search(ATTACKS["finetune_all"], arena_for(ATTACKS["finetune_all"], budget=5))
    assert outcome.notes == [
        "out of memory: continued with batches of 60",
        "out of memory: continued with batches of 30",
    ]
    assert outcome.points[-1].samples == 5 * 30


def test_augmentation_is_offered_for_images_only():
    flat, images = (arena_for(ATTACKS[n]) for n in ("finetune_all", "batchnorm_only"))
    assert space_of(ATTACKS["finetune_all"], flat)["augment"] == (False,)
    assert space_of(ATTACKS["finetune_all"], images)["augment"] == (False, True)
    long = dataclasses.replace(flat, budget=5000)
    assert space_of(ATTACKS["finetune_all"], long)["schedule"] == ("short", "long")


def test_nothing_to_train_is_said():
    arena = arena_for(ATTACKS["finetune_all"], model=nn.Sequential(nn.Tanh()).eval())
    with pytest.raises(NotApplicableError, match="no parameters"):
        search(ATTACKS["finetune_all"], arena)


def test_without_a_harmless_task_there_is_no_detour():
    arena = dataclasses.replace(arena_for(ATTACKS["harmless_first"]), harmless=None)
    with pytest.raises(NotApplicableError, match="harmless"):
        search(ATTACKS["harmless_first"], arena)


def test_the_harmless_phase_counts_and_scoring_is_not_on_the_clock(monkeypatch):
    attack, clock = ATTACKS["harmless_first"], [0.0]

    def scores(*_):
        clock[0] += 100.0
        return 0.5, 0.5

    arena = arena_for(attack, budget=8)
    monkeypatch.setattr("immunis.attacks.tuning._scores", scores)
    monkeypatch.setattr("immunis.attacks.search.time.perf_counter", lambda: clock[0])
    settings = {name: values[0] for name, values in space_of(attack, arena).items()}
    points = curve(attack, arena, settings)
    assert [point.seconds for point in points] == [0.0] * len(points)
    assert points[0].steps == 3  # two of the earlier phase
    alone = curve(ATTACKS["finetune_all"], arena, settings)
    assert points[0].flops == pytest.approx(3 * alone[0].flops)


def test_peft_missing_is_not_applicable(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(NotApplicableError, match=r"immunis\[lora\]"):
        search(ATTACKS["lora"], arena_for(ATTACKS["lora"]))
