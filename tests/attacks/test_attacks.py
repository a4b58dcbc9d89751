"""The contract every attack passes, and known answers."""

import dataclasses

import numpy as np
import pytest
import torch
from immunis.attacks.preprocess import in_basis, lengths
from sklearn.linear_model import LogisticRegression
from torch import nn

from helpers.arenas import IMAGES, arena_for, image_data, separable
from helpers.networks import Residual
from helpers.tasks import make_task
from immunis import SettingsError, Task, gram, immunize
from immunis.attacks import ATTACKS, GROUPS, PRESETS, check_space, select
from immunis.attacks.contract import (
    Arena,
    Attack,
    Data,
    Meter,
    NotApplicableError,
    Point,
    Samples,
    checkpoints,
    count_flops,
)
from immunis.attacks.probes.kernel import RIDGES
from immunis.attacks.probes.logistic import logistic
from immunis.attacks.search import grid, search
from immunis.models.find_head import cut
from immunis.models.zoo import untrained
from immunis.theory.feature_maps import unit_rows
from immunis.theory.gram import gram_of
from immunis.theory.ridge import cross_validated_ridge, ridge_probe
from immunis.theory.scores import score

F = torch.float64


@pytest.mark.parametrize("name", ATTACKS)
class TestContract:
    def test_solves_a_separable_task(self, name):
        outcome = search(ATTACKS[name], arena_for(ATTACKS[name]))
        best = max(outcome.points, key=lambda p: p.validation)
        assert best.test > 0.9, (name, outcome)

    def test_costs_rise_along_the_curve_and_stay_in_budget(self, name):
        arena = arena_for(ATTACKS[name], budget=20, extraction_flops=100.0)
        points = search(ATTACKS[name], arena).points
        assert points[-1].steps <= 20
        for cost in ("steps", "samples", "flops", "seconds"):
            values = [getattr(p, cost) for p in points]
            assert values == sorted(values), cost
            assert values[-1] > 0, cost

    def test_the_same_seed_gives_the_same_curve(self, name):
        a, b = (search(ATTACKS[name], arena_for(ATTACKS[name], budget=10)) for _ in range(2))
        assert a.settings == b.settings
        for p, q in zip(a.points, b.points, strict=True):
            assert (p.steps, p.flops, p.validation, p.test) == (
                q.steps, q.flops, q.validation, q.test,
            )  # fmt: skip

    def test_leaves_the_model_and_the_global_generator_alone(self, name):
        arena = arena_for(ATTACKS[name], budget=5)
        before = {k: v.clone() for k, v in arena.cut.model.state_dict().items()}
        torch.manual_seed(5)
        search(ATTACKS[name], arena)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
        for key, value in arena.cut.model.state_dict().items():
            assert torch.equal(value, before[key]), key
        assert not arena.cut.model.training

    def test_its_settings_may_be_narrowed_by_name(self, name):
        check_space(ATTACKS[name].space(arena_for(ATTACKS[name])))

    def test_regression_works_or_is_refused_in_words(self, name):
        def values(seed):
            x, _ = (image_data if name in IMAGES else separable)(seed=seed)
            flat = x.reshape(len(x), -1)
            return x, flat[:, :2].astype(np.float64) * 2 + 1

        arena = arena_for(ATTACKS[name], data=values, kind="regression")
        if name == "logistic":
            with pytest.raises(NotApplicableError, match="classes"):
                search(ATTACKS[name], arena)
            return
        assert max(p.test for p in search(ATTACKS[name], arena).points) > 0.3

    def test_has_a_summary_and_a_place(self, name):
        assert ATTACKS[name].summary
        assert sum(name in {a.name for a in group} for group in GROUPS.values()) == 1


# Known answers.


def test_ridge_equals_the_normal_equations():
    arena = arena_for(ATTACKS["ridge"])
    features = arena.features()
    z, y = features.z.double(), features.targets()
    ones = torch.cat([z, torch.ones(len(z), 1, dtype=F)], 1)
    expected = torch.linalg.lstsq(ones, y).solution
    found = ATTACKS["ridge"].run(arena, {"ridge": 1e-12, "basis": "given"})
    test, labels = features.parts["test"]
    predicted = torch.cat([test.double(), torch.ones(len(test), 1, dtype=F)], 1) @ expected
    assert found[0].test == score(predicted, labels, "classification")


def test_lbfgs_equals_ridge_at_the_optimum():
    def values(seed):
        x, _ = separable(seed=seed)
        rng = np.random.default_rng(seed)
        return x, x[:, :1].astype(np.float64) + rng.normal(size=(len(x), 1))

    arena = arena_for(ATTACKS["lbfgs"], data=values, kind="regression")
    features = arena.features().scaled()
    penalty = 1e-2  # of the mean squared error: λ = penalty·n in the sum
    found = ATTACKS["lbfgs"].run(arena, {"rate": 1.0, "penalty": penalty})[-1]
    moments = gram(Task((features.z.double(), features.y)))
    relative = penalty * features.samples / float(moments.scatter.diagonal().mean())
    weights, bias = ridge_probe(moments, relative)
    expected = features.scores(lambda z: z.double() @ weights + bias)
    assert found.test == pytest.approx(expected[1], abs=1e-4)


def test_descent_reaches_what_ridge_reaches():
    arena = arena_for(ATTACKS["gd_line_search"], budget=5000)
    ridge = ATTACKS["ridge"].run(arena, {"ridge": 1e-9, "basis": "given"})[0].test
    for name, settings in (
        ("gd_line_search", {"bias": True}),
        ("gd_constant", {"rate": 1.9}),
        ("whiten", {"ridge": 0.0}),
    ):
        assert ATTACKS[name].run(arena, settings)[-1].test == pytest.approx(ridge, abs=0.02)


def test_whitening_undoes_a_conditioning_defence_exactly():
    primary = make_task(200, d=6, seed=1, name="p")
    harmful = make_task(200, d=6, seed=2, name="h", shift=0.3)

    def data(seed):
        x, y = make_task(300, d=6, seed=2, shift=0.3).train.tensors()
        rows = slice(0, 150) if seed == 10 else slice(150, None)
        return x[rows].numpy(), y[rows].numpy()

    curves = []
    for model in (
        torch.eye(6, dtype=F),
        immunize(torch.eye(6, dtype=F), primary, harmful, "frontier"),
    ):
        arena = arena_for(ATTACKS["whiten"], model=model, data=data, budget=20)
        curves.append(ATTACKS["whiten"].run(arena, {"ridge": 0.0}))
    for a, b in zip(*curves, strict=True):
        assert (a.steps, a.validation, a.test) == (b.steps, b.validation, b.test)


LINEAR = ("gd_line_search", "gd_constant", "sgd", "adam", "lbfgs", "ridge", "logistic",
          "standardise", "whiten", "batchnorm_probe", "reparameterise")  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_full_erasure_holds_every_linear_probe_at_chance_on_the_training_distribution(name):
    x, y = separable(600)
    task = Task((x.astype(np.float64), y), name="h")
    erased = immunize(torch.eye(6, dtype=F), task, task, "erase", strength=0.0).model

    def data(seed):  # attacker and test see the very sample the erasure was fitted on
        return x.astype(np.float64), y

    arena = arena_for(ATTACKS[name], model=erased, data=data, budget=100)
    object.__setattr__(arena, "rows", (np.arange(600), np.arange(600)))
    outcome = search(ATTACKS[name], arena)
    assert max(p.test for p in outcome.points) < 0.45, name  # chance is 1/3


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
def test_logistic_regression_is_scikit_learns(c, classes):
    x, y = separable(300, 0)
    z, y = torch.from_numpy(x).to(F)[y < classes], torch.from_numpy(y[y < classes])
    z = z + 3 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0), dtype=F)
    model = LogisticRegression(C=c, max_iter=1000, tol=1e-9).fit(z.numpy(), y.numpy())
    weights, bias, _ = logistic(z, y, c, 1000)
    best = nn.functional.nll_loss(torch.from_numpy(model.predict_log_proba(z.numpy())), y)
    best = best + float(np.square(model.coef_).sum()) / (2 * c * len(z))
    shown = weights if classes > 2 else weights[1] - weights[0]
    loss = nn.functional.cross_entropy(z @ weights.T + bias, y)
    assert 0 <= loss + shown.square().sum() / (2 * c * len(z)) - best + 1e-9 < 1e-4


def test_logistic_regression_of_float32_features_of_any_scale_does_not_stop_early():
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 3
    z = torch.randn(600, 8, generator=draws) + 2 * torch.eye(3, 8)[y]
    z[:, 7] = 1e4 * z[:, 7] + 3e4  # all in float32 it would end at chance, after two steps
    weights, bias, _ = logistic(z, y, 100.0, 500)
    assert float(((z.double() @ weights.T + bias).argmax(1) == y).double().mean()) > 0.8


@pytest.mark.parametrize("noise", [0.1, 3.0, 30.0])
def test_the_kernels_damping_has_the_least_generalised_cross_validation_error(noise):
    rng = np.random.default_rng(3)
    z = rng.normal(size=(60, 8)) * np.logspace(0, -2, 8)
    y = z @ rng.normal(size=(8, 2)) + noise * rng.normal(size=(60, 2))
    centred, targets = z - z.mean(0), y - y.mean(0)

    def error(ridge):  # by the definition, with the hat matrix
        damping = ridge * np.trace(centred.T @ centred) / 8 * np.eye(8)
        hat = centred @ np.linalg.solve(centred.T @ centred + damping, centred.T)
        return np.sum((targets - hat @ targets) ** 2) / (1 - (1 + np.trace(hat)) / 60) ** 2

    found = cross_validated_ridge(gram_of(torch.from_numpy(z), torch.from_numpy(y)), RIDGES)
    assert found == min(RIDGES, key=error)


def test_the_kernel_may_damp_less_where_the_best_class_counts_and_not_where_squares_do():
    def noisy(seed):
        x, y = separable(300, seed)
        return x + 4 * np.random.default_rng(seed).normal(size=x.shape).astype(np.float32), y

    def targets(seed):
        x, y = noisy(seed)
        return x, np.eye(3)[y]

    attack = ATTACKS["kernel"]
    arena = arena_for(attack, data=noisy)
    settings = {"width": 0.1, "basis": "standardised"}
    seen = [attack.run(arena, settings | {"damping": d})[-1].validation for d in (1.0, 0.01)]
    assert seen[0] != seen[1] and attack.space(arena)["damping"] == (1.0, 0.01)
    assert search(attack, arena).points[-1].validation >= max(seen)
    assert attack.space(arena_for(attack, data=targets, kind="regression"))["damping"] == (1.0,)


@pytest.mark.parametrize("name", ["mlp", "knn", "kernel"])
def test_a_direction_that_drowns_the_others_does_not_blind(name):
    """Where one direction is thousands of times larger, standardising shows no other."""

    def data(seed):
        x, y = separable(300, seed)
        common = np.random.default_rng(seed).normal(size=(len(x), 1))
        return (x + 3e3 * common).astype(np.float32), y

    outcome = search(ATTACKS[name], arena_for(ATTACKS[name], data=data, budget=100))
    assert max(p.test for p in outcome.points) > 0.8
    if name != "kernel":  # which damps as little as it takes
        assert outcome.settings["basis"] == "white"


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("share", [0.005, 0.03])
@pytest.mark.parametrize("name", ["ridge", "logistic", "mlp", "knn", "kernel"])
def test_rows_much_longer_than_others_do_not_blind(name, share, scale):
    """Where a few rows are longer by orders of magnitude, a common scale shows no other."""

    def data(seed):
        x, y = separable(300, seed)
        long = np.random.default_rng(seed).random(len(x)) < share
        return (x * np.where(long, 1e7, 1.0)[:, None] * scale).astype(np.float32), y

    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3)).eval()
    nn.init.eye_(model[0].weight)  # features are the inputs
    arena = arena_for(ATTACKS[name], data=data, budget=100, model=model)
    outcome = search(ATTACKS[name], arena)
    assert max(p.test for p in outcome.points) > 0.8
    assert outcome.settings["basis"] == "unit" or share < 0.01  # none may be among those to fit on


def test_rows_of_zeros_have_no_length_to_bring_to_one():
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3e-300, 4e-300], [-3e300, 4e300]], dtype=F)
    found = unit_rows(z)
    assert torch.allclose(
        found, torch.tensor([[0, 0], [0.6, 0.8], [0.6, 0.8], [-0.6, 0.8]]).double()
    )


def test_rows_are_of_one_length_after_whitening_too():
    features, _ = in_basis(arena_for(ATTACKS["mlp"]), "unit")
    size = features.z.norm(dim=1)
    assert torch.allclose(size, torch.full_like(size, features.dimension**0.5))


def test_even_rows_and_constant_ones_are_left_as_they_are():
    constant = arena_for(ATTACKS["mlp"], data=lambda seed: (np.ones((60, 3)), np.arange(60) % 2))
    assert lengths(constant) == lengths(arena_for(ATTACKS["mlp"])) == ("given",)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_units_of_regression_targets_do_not_matter(name):
    if name == "logistic":
        return

    def values(factor):
        def data(seed):
            x, _ = (image_data if name in IMAGES else separable)(seed=seed)
            flat = x.reshape(len(x), -1)
            return x, factor * (flat[:, :1].astype(np.float64) * 2 + 5)

        return data

    found = [
        max(p.test for p in search(ATTACKS[name], arena_for(
            ATTACKS[name], data=values(factor), kind="regression", budget=50)).points)
        for factor in (1.0, 1e5)
    ]  # fmt: skip
    assert found[1] == pytest.approx(found[0], abs=0.05), name


def test_closed_form_attacks_validate_few_samples_on_three_balanced_fifths():
    arena = arena_for(ATTACKS["ridge"])
    parts = [dataclasses.replace(arena, fold=fold).rows for fold in range(3)]
    for fit, held in parts:
        assert not set(fit) & set(held)
        assert np.bincount(arena.train.labels[held]).tolist() == [10, 10, 10]
    assert not set(parts[0][1]) & set(parts[1][1])
    whole = dataclasses.replace(arena, refit=True)
    assert len(whole.rows[0]) == 150


def test_a_closed_form_attack_is_fitted_again_on_all_rows():
    arena = arena_for(ATTACKS["ridge"])
    outcome = search(ATTACKS["ridge"], arena)
    whole = dataclasses.replace(arena, refit=True)
    assert outcome.points[0].test == ATTACKS["ridge"].run(whole, outcome.settings)[0].test
    assert outcome.runs == 6 * 3 + 1
    assert outcome.search_flops > outcome.points[0].flops


def test_a_closed_form_attack_is_chosen_without_a_look_at_test_rows():
    ridge, seen = ATTACKS["ridge"], []

    def run(arena, settings):
        points = ridge.run(arena, settings)
        seen.append((arena.blind, np.isnan(points[0].test)))
        return points

    outcome = search(dataclasses.replace(ridge, run=run), arena_for(ridge))
    assert seen == [(True, True)] * 18 + [(False, False)]
    assert np.isfinite(outcome.points[0].test)


def test_neighbours_are_billed_for_the_rows_they_are_asked_about():
    arena = arena_for(ATTACKS["knn"])
    settings = {"k": 1, "metric": "cosine", "basis": "standardised"}
    seen, blind = (
        ATTACKS["knn"].run(dataclasses.replace(arena, blind=blind), settings)[0].flops
        for blind in (False, True)
    )
    validation = len(arena.rows[1])
    assert blind / seen == pytest.approx(validation / (validation + len(arena.test.labels)))


def test_scoring_of_an_earlier_phase_is_not_on_the_clock(monkeypatch):
    attack, clock = ATTACKS["harmless_first"], [0.0]

    def scores(*_):
        clock[0] += 100.0
        return 0.5, 0.5

    arena = arena_for(attack, budget=8)
    samples = Samples(arena.kind, arena.outputs, arena.train, arena.test)
    monkeypatch.setattr("immunis.attacks.finetuning.shared._scores", scores)
    monkeypatch.setattr("immunis.attacks.contract.time.perf_counter", lambda: clock[0])
    settings = {name: values[0] for name, values in attack.space(arena).items()}
    points = attack.run(dataclasses.replace(arena, harmless=samples), settings)
    assert [point.seconds for point in points] == [0.0] * len(points)
    assert points[0].steps == 3  # two of the earlier phase
    later = Meter(arena, seconds=3.0)
    later.point(1, 1, 1.0, scores)
    assert later.points[0].seconds == 3.0


def test_inner_searches_are_counted():
    outcome = search(ATTACKS["drop_last"], arena_for(ATTACKS["drop_last"], budget=5))
    assert outcome.trials == 3
    assert outcome.runs > 3 * 3
    long = arena_for(ATTACKS["drop_last"], budget=1000)
    assert len(ATTACKS["drop_last"].space(long)["probe"]) == len(GROUPS["probes"])


def test_whitening_costs_something():
    arena = arena_for(ATTACKS["whiten"], budget=5)
    plain = ATTACKS["standardise"].run(arena, {})[0].flops
    assert ATTACKS["whiten"].run(arena, {"ridge": 0.0})[0].flops > plain


def test_fine_tuning_moves_only_what_it_says(monkeypatch):
    seen = {}
    import immunis.attacks.finetuning.finetune_last as module

    def spy(arena, network, trained, settings):
        seen["ids"] = {id(p) for p in trained}
        seen["network"] = network
        return [Point(1, 1, 1.0, 0.0, 0.0, 0.0)]

    monkeypatch.setattr(module, "tune", spy)
    ATTACKS["finetune_last"].run(arena_for(ATTACKS["finetune_last"]), {})
    last = seen["network"].body.get_submodule("2")
    assert seen["ids"] == {id(p) for p in last.parameters()}


def test_reinitialised_stages_are_drawn_anew(monkeypatch):
    import immunis.attacks.finetuning.reinit_last as module

    seen = {}

    def spy(arena, network, trained, settings):
        seen["network"] = network
        return [Point(1, 1, 1.0, 0.0, 0.0, 0.0)]

    monkeypatch.setattr(module, "tune", spy)
    arena = arena_for(ATTACKS["reinit_last"])
    ATTACKS["reinit_last"].run(arena, {"stages": 1, "train": "last"})
    old, new = arena.cut.model, seen["network"].body
    assert torch.equal(old[0].weight, new[0].weight)
    assert not torch.equal(old[2].weight, new[2].weight)
    twins = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)).eval()
    arena = arena_for(ATTACKS["reinit_last"], model=twins)
    ATTACKS["reinit_last"].run(arena, {"stages": 2, "train": "last"})
    assert not torch.equal(seen["network"].body[1].weight, seen["network"].body[2].weight)


def test_training_from_scratch_is_fine_tuning_the_untrained_control():
    arena = arena_for(ATTACKS["finetune_all"])
    fresh = dataclasses.replace(arena, cut=untrained(arena.cut, 0))
    assert search(ATTACKS["finetune_all"], fresh).points[-1].test > 0.9


def test_running_out_of_memory_halves_the_batch_and_says_so(monkeypatch):
    import immunis.attacks.finetuning.shared as module

    real = module.loss_of

    def small(outputs, labels, kind):
        if len(outputs) > 40:
            raise torch.OutOfMemoryError("pretend")
        return real(outputs, labels, kind)

    monkeypatch.setattr(module, "loss_of", small)
    outcome = search(ATTACKS["finetune_all"], arena_for(ATTACKS["finetune_all"], budget=5))
    assert outcome.notes == [
        "out of memory: went on with batches of 60",
        "out of memory: went on with batches of 30",
    ]
    assert outcome.points[-1].samples == 5 * 30


def test_augmentation_is_offered_for_images_only():
    flat, images = (arena_for(ATTACKS[n]) for n in ("finetune_all", "batchnorm_only"))
    assert ATTACKS["finetune_all"].space(flat)["augment"] == (False,)
    assert ATTACKS["finetune_all"].space(images)["augment"] == (False, True)
    long = dataclasses.replace(flat, budget=5000)
    assert ATTACKS["finetune_all"].space(long)["schedule"] == ("short", "long")


@pytest.mark.parametrize(
    "name", ["earlier_layer", "concat_blocks", "reinit_last", "distil", "finetune_last"]
)
def test_one_stage_has_no_surgery(name):
    arena = arena_for(ATTACKS[name], model=torch.eye(6))
    with pytest.raises(NotApplicableError, match="one stage"):
        search(ATTACKS[name], arena)


@pytest.mark.parametrize(
    "name", ["drop_last", "invert_last", "pseudo_inverse", "reinit_directions"]
)
def test_features_that_no_linear_layer_makes_cannot_be_undone(name):
    arena = arena_for(ATTACKS[name], model=Residual().eval(), data=image_data)
    with pytest.raises(NotApplicableError, match="linear layer"):
        search(ATTACKS[name], arena)


def test_nothing_to_train_is_said():
    arena = arena_for(ATTACKS["finetune_all"], model=nn.Sequential(nn.Tanh()).eval())
    with pytest.raises(NotApplicableError, match="no parameters"):
        search(ATTACKS["finetune_all"], arena)


def test_without_a_harmless_task_there_is_no_detour():
    arena = dataclasses.replace(arena_for(ATTACKS["harmless_first"]), harmless=None)
    with pytest.raises(NotApplicableError, match="harmless"):
        search(ATTACKS["harmless_first"], arena)


def drowned(n=400, seed=0):
    """Labels in the second of eight inputs."""
    x = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
    return x, (x[:, 1] > 0).astype(int)


def test_what_a_float32_pass_rounds_away_a_float64_pass_reads():
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(8, 8))[0]
    first = nn.Linear(8, 8, bias=False)
    first.weight.data = turn * torch.tensor([1e9, *[1.0] * 7])  # one direction drowns the others
    model = nn.Sequential(first, nn.Linear(8, 3)).eval()
    scores = {
        name: search(ATTACKS[name], arena_for(ATTACKS[name], model=model, data=drowned))
        for name in ("ridge", "whiten", "float64")
    }
    finals = {name: max(p.test for p in outcome.points) for name, outcome in scores.items()}
    assert max(finals["ridge"], finals["whiten"]) < 0.7
    assert finals["float64"] > 0.9


def test_a_network_that_refuses_float64_is_no_case_for_it():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.float() @ torch.eye(6)

    model = nn.Sequential(Fixed(), nn.Linear(6, 3)).eval()
    arena = arena_for(ATTACKS["float64"], model=model)
    with pytest.raises(NotApplicableError, match="does not run in float64"):
        search(ATTACKS["float64"], arena)


# The machinery.


def test_the_search_validates_on_data_it_does_not_fit_and_never_on_test_data():
    arena = arena_for(ATTACKS["ridge"])
    fit, held = arena.rows
    assert not set(fit) & set(held)
    assert len(fit) + len(held) == 150

    def run(arena, settings):
        right = settings["x"]
        return [Point(1, 1, 1.0, 0.0, validation=right, test=1 - right)]

    fake = Attack("fake", "", run, lambda arena: {"x": (0.2, 0.9, 0.5)})
    assert search(fake, arena).settings == {"x": 0.9}


def test_optuna_searches_between_the_ends_and_is_reproducible():
    pytest.importorskip("optuna")
    arena, seen = arena_for(ATTACKS["ridge"]), []

    def run(arena, settings):
        seen.append(settings["rate"])
        return [Point(1, 1, 1.0, 0.0, -abs(np.log10(settings["rate"]) + 2.5), 0.0)]

    fake = Attack("fake", "", run, lambda a: {"rate": (1e-4, 1e-1), "kind": ("a", "b")})
    outcome = search(fake, arena, trials=12)
    assert outcome.trials == 12
    assert outcome.runs == 12
    assert all(1e-4 <= rate <= 1e-1 for rate in seen)
    assert len(set(seen)) > 4
    first = list(seen)
    seen.clear()
    search(fake, arena, trials=12)
    assert seen == first


def test_optuna_missing_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"immunis\[search\]"):
        search(ATTACKS["ridge"], arena_for(ATTACKS["ridge"]), trials=2)


def test_peft_missing_is_not_applicable(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(NotApplicableError, match=r"immunis\[lora\]"):
        search(ATTACKS["lora"], arena_for(ATTACKS["lora"]))


def test_small_helpers():
    assert checkpoints(1) == [1]
    assert checkpoints(30) == [1, 2, 5, 10, 20, 30]
    assert list(grid({"a": (1, 2), "b": ("x",)})) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert list(grid({})) == [{}]
    product, flops = count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    assert product.shape == (2, 4)
    assert flops == 2 * 2 * 3 * 4
    nan = torch.full((2, 2), float("nan"))
    assert score(nan, torch.zeros(2, dtype=torch.long), "classification") == 0
    assert score(nan, torch.randn(2, 2, dtype=F), "regression") == -float("inf")


def test_presets_and_names():
    quick, budget = select("quick")
    assert {a.name for a in quick} == set(PRESETS["quick"][0])
    assert budget < PRESETS["full"][1]
    assert {a.name for a in select("full")[0]} == set(ATTACKS)
    assert [a.name for a in select(["ridge", "ridge", "knn"])[0]] == ["ridge", "knn"]
    assert [a.name for a in select("ridge,knn")[0]] == ["ridge", "knn"]
    for bad, says in (
        ("quik", "did you mean 'quick'"),
        (["rigde"], "did you mean 'ridge'"),
        ([], "at least one"),
    ):
        with pytest.raises(SettingsError, match=says):
            select(bad)


def test_a_closed_form_regression_is_chosen_by_the_median_of_five_fifths():
    """One row unlike all others makes the right penalty look worst in its own fifth."""
    validation = {"right": [0.9, 0.9, -350.0, 0.9, 0.9], "wrong": [0.5] * 5}

    def run(arena, settings):
        score = validation[settings["penalty"]][arena.fold]
        return [Point(1, 1, 1.0, 0.0, score, 0.0)]

    attack = Attack("stub", "a stub", run, lambda arena: {"penalty": ("wrong", "right")},
                    closed_form=True)  # fmt: skip
    x, y = np.zeros((600, 2)), np.zeros((600, 1))
    whole = cut(torch.eye(2), torch.ones(2, 2))
    arena = Arena(whole, "regression", 1, Data(x, y), Data(x, y), {"": (x, x)})
    found = search(attack, arena)
    assert found.settings == {"penalty": "right"}
    assert found.runs == 5 * 2 + 1
    assert found.points[-1].validation == 0.9
