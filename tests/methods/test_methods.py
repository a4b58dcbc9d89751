"""The contract every linear method passes, and what is special about each."""

import dataclasses
import pickle
import warnings

import pytest
import torch
from torch import nn

from helpers.reference import naive_algorithm_1
from helpers.tasks import make_task
from immunis import (
    InputError,
    NumericalError,
    RankWarning,
    SettingsError,
    Task,
    audit,
    gram,
    immunize,
    relative_immunization_ratio,
)
from immunis.methods import METHODS, LinearProblem, get_method
from immunis.methods.base import Solution
from immunis.methods.condition import MULTIPLES, STEP_SIZES, batches
from immunis.methods.erase import eraser
from immunis.methods.imma import Settings as ImmaSettings
from immunis.methods.imma import attacked, l2_loss
from immunis.theory.frontier import ceiling
from immunis.theory.gram import as_extractor
from immunis.theory.rho import rho_of_gram

F = torch.float64
LINEAR = [name for name, method in METHODS.items() if method.solve is not None]
EYE = torch.eye(5, dtype=F)
VARIANTS = {
    **{name: (name, {}) for name in LINEAR},
    "condition adam": ("condition", {"optimizer": "adam"}),
    "condition mini-batch": ("condition", {"batch_size": 16, "optimizer": "adam", "steps": 5}),
    "condition certified": ("condition", {"certified": True}),
    "frontier budget": ("frontier", {"budget": 50.0}),
    "erase fully": ("erase", {"strength": 0.0}),
}


def problem(primary, harmful, theta=EYE):
    return LinearProblem(theta, gram(primary), gram(harmful), (primary, harmful))


@pytest.mark.parametrize("variant", VARIANTS)
class TestContract:
    def run(self, variant, model, pair, **more):
        method, settings = VARIANTS[variant]
        return immunize(model, *pair, method, **{**settings, **more})

    def test_returns_a_plain_layer_and_head(self, variant, pair):
        layer = nn.Linear(5, 5, bias=True)
        result = self.run(variant, layer, pair)
        assert type(result.model) is nn.Linear
        assert type(result.head) is nn.Linear
        assert result.model.state_dict().keys() == layer.state_dict().keys()
        assert result.model.weight.dtype == torch.float32
        assert not result.model.training
        assert result.head.out_features == 3

    @pytest.mark.parametrize("model", ["identity", "matrix", "biased layer"])
    def test_primary_predictions_are_unchanged_where_theta_is_invertible(
        self, variant, pair, model
    ):
        extractor = {
            "identity": EYE,
            "matrix": torch.randn(5, 5, dtype=F),
            "biased layer": nn.Linear(5, 5, dtype=F),
        }[model]
        untouched = immunize(extractor, *pair, "erase", strength=1.0)
        result = self.run(variant, extractor, pair)
        x = pair[0].test.tensors()[0]
        before, after = (r.head(as_extractor(r.model)(x)) for r in (untouched, result))
        if result.exact:
            torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
        else:
            assert variant == "erase fully"

    def test_a_given_head_is_compensated(self, variant, pair):
        head = nn.Linear(5, 3, dtype=F)
        result = self.run(variant, EYE, pair, head=head)
        x = pair[0].train.tensors()[0].to(F)
        if result.exact:
            torch.testing.assert_close(
                result.head(as_extractor(result.model)(x)), head(x), rtol=1e-5, atol=1e-6
            )

    def test_the_same_seed_gives_the_same_layer(self, variant, pair):
        a, b = (self.run(variant, EYE, pair, seed=3) for _ in range(2))
        assert torch.equal(a.model.weight, b.model.weight)

    @pytest.mark.filterwarnings("ignore::immunis.RankWarning")
    def test_changes_theta_and_writes_a_record(self, variant, pair):
        result = self.run(variant, EYE, pair)
        assert not torch.allclose(result.model.weight, EYE)
        record = result.record
        assert record.kind == "immunize"
        assert record.settings["method"] == VARIANTS[variant][0]
        assert record.figures["rir"]["value"] > 0
        assert set(record.data) == {"primary", "harmful"}
        assert record.to_json()

    def test_does_not_touch_what_it_was_given(self, variant, pair):
        layer = nn.Linear(5, 5)
        before = [p.detach().clone() for p in layer.parameters()]
        self.run(variant, layer, pair)
        assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))

    def test_reports_progress_up_to_one(self, variant, pair):
        seen = []
        self.run(variant, EYE, pair, progress=lambda what, share: seen.append(share))
        assert seen == sorted(seen)
        assert not seen or 0 <= seen[0] <= seen[-1] <= 1

    def test_no_rir_exceeds_the_ceiling(self, variant, pair):
        if variant == "erase fully":
            return  # a singular θ changes ranks, and RIR compares unlike things
        ratio = relative_immunization_ratio(self.run(variant, EYE, pair).model, *pair)
        assert ratio.value <= ceiling(gram(pair[0]), gram(pair[1])) * (1 + 1e-6)

    @pytest.mark.filterwarnings("ignore::immunis.RankWarning")
    def test_regression_tasks_work(self, variant):
        primary, harmful = (
            Task((x, x @ torch.randn(5, dtype=F) + 0.1 * torch.randn(60, dtype=F)), name=name)
            for name, x in (
                (name, torch.randn(60, 5, dtype=F) * torch.arange(1.0, 6)) for name in ("p", "h")
            )
        )
        result = self.run(variant, EYE, (primary, harmful))
        assert result.head.out_features == 1
        assert result.record.figures["primary_score"]["after"] > 0.5

    def test_rank_deficient_data_work(self, variant, quiet_rank):
        tasks = []
        for seed, name in ((1, "p"), (2, "h")):
            x, y = make_task(80, seed=seed).train.tensors()
            x = torch.cat([x, x[:, :1], 0 * x[:, :1]], 1)  # a duplicate and a zero column
            tasks.append(Task((x, y), name=name))
        result = self.run(variant, torch.eye(7, dtype=F), tasks)
        assert torch.isfinite(result.model.weight).all()
        assert result.record.figures["rir"]["value"] > 0


@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (torch.ones(5, 5), "singular"),
        (torch.zeros(5, 5), "singular"),
        (torch.randn(5, 4), "square"),
        (nn.Linear(5, 3), "square"),
        (torch.eye(6), "reads 6 features"),
        (torch.eye(5).long(), "floating-point"),
        (torch.full((5, 5), float("nan")), "finite"),
        ("theta", "expected nn.Linear"),
        (nn.ReLU().eval(), "not the output of a linear layer"),
        (nn.Sequential(nn.Linear(5, 5)), "training mode"),
    ],
)
def test_bad_models_are_refused_by_every_method(method, model, says, pair):
    with pytest.raises(InputError, match=says):
        immunize(model, *pair, method)


def test_bad_pairs_are_refused(pair):
    primary, harmful = pair
    other = Task((torch.randn(20, 4), torch.arange(20) % 2), name="narrow")
    with pytest.raises(InputError, match="narrow inputs"):
        immunize(EYE, primary, other, "frontier")
    zero = Task((torch.zeros(20, 5), torch.arange(20) % 2), name="nothing")
    for bad in ((primary, zero), (zero, harmful)):
        with pytest.raises(InputError, match="nothing: every feature of every sample is zero"):
            immunize(EYE, *bad, "condition")
    one_class = Task((torch.randn(20, 5), torch.zeros(20, dtype=torch.long)), name="single")
    with pytest.raises(InputError, match="at least two classes"):
        immunize(EYE, primary, one_class, "erase")
    with pytest.raises(InputError, match="expected nn.Linear"):
        immunize(EYE, primary, harmful, head="head")
    for bad in (nn.Linear(4, 3), nn.Linear(5, 7)):
        with pytest.raises(InputError, match="reads 5 features and gives 3 outputs"):
            immunize(EYE, primary, harmful, head=bad)
    empty = nn.Linear(5, 3)
    empty.weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match="NaN"):
        immunize(EYE, primary, harmful, head=empty)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("frontir", {}, "did you mean 'frontier'"),
        ("", {}, "unknown method"),
        ("frontier", {"budgt": 2}, "did you mean 'budget'"),
        ("frontier", {"budget": 0.5}, "budget"),
        ("frontier", {"free_scale": 0}, "free_scale"),
        ("erase", {"strength": -0.1}, "strength"),
        ("erase", {"strength": 1.1}, "strength"),
        ("erase", {"strength": float("nan")}, "strength"),
        ("condition", {"lambda_primary": -1.0}, "lambda_primary"),
        ("condition", {"lambda_harmful": -1.0}, "lambda_harmful"),
        ("condition", {"steps": 0}, "steps"),
        ("condition", {"step": 0.0}, "step"),
        ("condition", {"step": "fast"}, "step='fast' is of type str"),
        ("condition", {"steps": 2.5}, "steps=2.5 is of type float"),
        ("condition", {"certified": 1}, "certified=1 is of type int"),
        ("condition", {"batch_size": "8"}, "batch_size='8'"),
        ("condition", {"batch_size": 2.5}, "batch_size=2.5"),
        ("frontier", {"ridge": -1.0}, "ridge"),
        ("condition", {"optimizer": "adamm"}, "did you mean 'adam'"),
        ("condition", {"batch_size": 1}, "batch_size"),
        ("condition", {"fraction": 1.0}, "fraction"),
        ("condition", {"certified": True, "search": True}, "certified"),
        ("imma", {"inner_steps": 0}, "inner_steps"),
        ("imma", {"inner_step": -1.0}, "inner_step"),
    ],
)
def test_bad_settings_are_refused_before_any_work(method, settings, says, pair):
    with pytest.raises(SettingsError, match=says):
        immunize(EYE, *pair, method, **settings)


def test_divergence_is_reported_not_returned(pair):
    with pytest.raises(NumericalError, match="lower the step"):
        immunize(EYE, *pair, "condition", step=1e6, steps=50)


def test_settings_are_frozen():
    for method in METHODS.values():
        for settings in (method.settings, method.network):
            if settings is not None:
                with pytest.raises(dataclasses.FrozenInstanceError):
                    settings().steps = 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_and_head_work_together_as_plain_modules(dtype, bias, pair):
    layer = nn.Linear(5, 5, bias=bias).to(dtype)
    result = immunize(layer, *pair, "frontier")
    x = pair[0].test.tensors()[0].to(dtype)
    before = immunize(layer, *pair, "erase", strength=1.0)
    assert result.model.weight.dtype == result.head.weight.dtype == dtype
    old, new = (r.head(r.model(x)).double() for r in (before, result))
    if dtype != torch.bfloat16:
        torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-3)
    assert immunize(torch.eye(5, dtype=dtype), *pair, "erase").model.weight.dtype == dtype


def test_before_and_after_in_a_record_are_of_the_given_extractor(pair):
    theta = torch.randn(5, 5, dtype=F)
    figures = immunize(theta, *pair, "erase", strength=1.0).record.figures
    assert figures["rir"] == pytest.approx({"harmful": 1, "primary": 1, "value": 1})
    assert figures["rir_against_inputs"]["value"] != pytest.approx(1)


def test_a_bias_is_in_the_ceiling_too(pair):
    x, y = pair[0].train.tensors()
    primary = Task((x + 50, y), name="p")
    x, y = pair[1].train.tensors()
    harmful = Task((x + 50, y), name="h")
    layer = nn.Linear(5, 5, dtype=F)
    layer.weight.data.copy_(EYE)
    layer.bias.data.fill_(-50)
    figures = immunize(layer, primary, harmful, "frontier").record.figures
    assert figures["rir"]["value"] <= figures["ceiling"] * (1 + 1e-6)
    assert figures["ceiling_against_inputs"] is None


def test_a_record_stays_true_whatever_becomes_of_the_layers(pair):
    layer = nn.Linear(5, 5)
    result, same = (immunize(layer, *pair, "frontier") for _ in range(2))
    expected = same.record.figures
    layer.weight.data.zero_()
    result.model.weight.data.zero_()
    result.head.weight.data.zero_()
    restored = pickle.loads(pickle.dumps(result))
    for found in (result.record.figures, restored.record.figures):
        assert found["rir"] == expected["rir"]
        assert found["primary_score"] == expected["primary_score"]


def test_a_single_class_has_no_score(pair):
    one = Task((torch.randn(30, 5), torch.zeros(30, dtype=torch.long)), name="one")
    assert immunize(EYE, one, pair[1], "frontier").record.figures["primary_score"]["after"] is None


def small_network(pair, head=True):
    parts = [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6)]
    return nn.Sequential(*parts, *([nn.Linear(6, 3)] if head else [])).eval()


@pytest.mark.parametrize("method", ["frontier", "erase", "condition"])
def test_a_network_comes_back_plain_with_the_map_folded_in(method, pair):
    network = small_network(pair)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    result = immunize(network, *pair, method)
    assert type(result.model) is nn.Sequential
    assert result.model.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert torch.equal(result.model[0].weight, network[0].weight)
    assert not torch.equal(result.model[2].weight, network[2].weight)
    assert result.head is result.model[3]
    x = pair[0].test.tensors()[0].float()
    torch.testing.assert_close(result.model(x), network(x), rtol=1e-3, atol=1e-3)
    assert result.record.figures["rir"]["value"] > 0


def test_a_network_may_know_more_classes_than_its_task_shows(pair):
    primary, harmful = pair
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 4)).eval()
    wide = Task(primary.train.tensors(), primary.test.tensors(), "wide", classes=4, names="abcd")
    result = immunize(network, wide, harmful, "erase")
    assert result.head is result.model[3] and result.head.out_features == 4


def test_a_head_without_bias_is_compensated_or_refused(pair):
    network = small_network(pair)
    network[3] = nn.Linear(6, 3, bias=False)
    network.eval()
    result = immunize(network, *pair, "erase", strength=0.01)
    x = pair[0].test.tensors()[0].float()
    torch.testing.assert_close(result.model(x), network(x), rtol=1e-3, atol=1e-3)
    with pytest.raises(InputError, match="no bias"):
        immunize(network, *pair, "erase", strength=0.0)


def test_a_network_without_a_head_gets_a_least_squares_one(pair):
    result = immunize(small_network(pair, head=False), *pair, "erase")
    assert result.head.in_features == 6
    assert result.record.figures["primary_score"]["after"] > 0.5
    own = nn.Linear(6, 3).eval()
    x = pair[0].test.tensors()[0].float()
    network = small_network(pair, head=False)
    result = immunize(network, *pair, "frontier", head=own)
    torch.testing.assert_close(result.head(result.model(x)), own(network(x)), rtol=1e-3, atol=1e-3)
    audit(
        {"original": (network, own), "defended": result},
        *pair,
        attacks=["ridge"],
        effort={"seeds": 1},
    )  # in one dtype throughout
    assert result.record.data["primary"]["train"] == pair[0].train.fingerprint()


# What is special about each method.


def test_frontier_reaches_the_ceiling_at_any_budget(pair):
    top = ceiling(gram(pair[0]), gram(pair[1]))
    for budget in (1.0, 10.0):
        result = immunize(EYE, *pair, "frontier", budget=budget)
        ratio = relative_immunization_ratio(result.model, *pair)
        assert ratio.value == pytest.approx(top, rel=1e-6)
        kappa_p = ratio.spectra["primary"][1].condition_number
        assert kappa_p == pytest.approx(budget, rel=1e-6)


def test_frontier_stays_as_close_to_the_given_theta_as_rotations_allow(pair):
    theta = torch.randn(5, 5, dtype=F)
    found = immunize(theta, *pair, "frontier").model.weight.T
    distance = float((found - theta).norm())
    for seed in range(20):
        q, _ = torch.linalg.qr(
            torch.randn(5, 5, dtype=F, generator=torch.Generator().manual_seed(seed))
        )
        assert distance <= float((found @ q - theta).norm()) + 1e-9


def test_certified_algorithm_1_reaches_the_ceiling(pair):
    top = ceiling(gram(pair[0]), gram(pair[1]))
    result = immunize(EYE, *pair, "condition", certified=True, steps=1)
    assert relative_immunization_ratio(result.model, *pair).value == pytest.approx(top, rel=1e-6)


def test_certified_steps_keep_the_primary_task_as_easy_as_it_was(quiet_rank):
    x, y = make_task(80, seed=1).train.tensors()
    primary = Task((torch.cat([x, 0 * x[:, :2]], 1), y), name="p")  # two free directions
    x, y = make_task(80, seed=2).train.tensors()
    harmful = Task((torch.cat([x, torch.randn(60, 2, dtype=F)], 1), y), name="h")
    result = immunize(torch.eye(7, dtype=F), primary, harmful, "condition", certified=True)
    figures = result.record.figures
    assert figures["ceiling"] == float("inf")
    assert figures["rir"]["primary"] <= 1 + 1e-9
    assert figures["rir"]["value"] > 1


def test_algorithm_1_improves_rir_and_search_improves_it_further(pair):
    one = immunize(EYE, *pair, "condition").record.figures
    many = immunize(EYE, *pair, "condition", search=True).record.figures
    assert one["rir"]["value"] > 1
    assert many["rir"]["value"] >= one["rir"]["value"]
    assert many["details"]["trials"] == len(STEP_SIZES) * len(MULTIPLES) ** 2


def test_full_batch_algorithm_1_follows_the_naive_one_step_by_step(pair):
    """One mini-batch that holds all data, plain descent: the naive loop is Algorithm 1."""
    primary, harmful = pair
    (x_p, y_p), (x_h, _) = (task.train.tensors() for task in pair)
    targets = primary.targets(y_p)
    theta = torch.eye(5, dtype=F) + 0.1 * torch.randn(5, 5, dtype=F)
    settings = {"step": 1e-5, "lambda_primary": 1e-3, "lambda_harmful": 1e3, "paper_scale": True}
    for steps in (1, 3):
        ours = get_method("condition")
        found = ours.solve(
            problem(primary, harmful, theta), ours.configure({**settings, "steps": steps})
        )
        path = [theta.clone()]
        omega = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=F) / 5**0.5
        for _ in range(steps):
            naive, omega = naive_step(path[-1], omega, x_p, targets, x_h, settings)
            path.append(naive)
        assert found.details["best_step"] >= 1
        expected = path[found.details["best_step"]]
        torch.testing.assert_close(found.theta, expected, rtol=1e-9, atol=1e-12)


def naive_step(theta, omega, x_p, y_p, x_h, settings):
    theta, omega = theta.clone().requires_grad_(), omega.clone().requires_grad_()
    from helpers.reference import r_ill, r_well

    loss = ((x_p @ theta @ omega - y_p) ** 2).sum() / len(x_p)
    grad_theta, grad_omega = torch.autograd.grad(loss, (theta, omega))
    k_p, k_h = x_p.T @ x_p, x_h.T @ x_h
    (well,) = torch.autograd.grad(r_well(theta.T @ k_p @ theta), theta)
    (ill,) = torch.autograd.grad(r_ill(theta.T @ k_h @ theta), theta)
    step = (
        grad_theta
        + settings["lambda_primary"] * torch.linalg.inv(k_p) @ well
        + settings["lambda_harmful"] * torch.linalg.inv(k_h) @ ill
    )
    eta = settings["step"]
    return (theta - eta * step).detach(), (omega - eta * grad_omega).detach()


def test_the_naive_loop_takes_the_naive_step(pair):
    (x_p, y_p), (x_h, _) = (task.train.tensors() for task in pair)
    settings = {"step": 1e-5, "lambda_primary": 1e-3, "lambda_harmful": 1e3}
    found = naive_algorithm_1(
        x_p,
        pair[0].targets(y_p),
        x_h,
        theta=EYE.clone(),
        epochs=1,
        step=1e-5,
        lambda_p=1e-3,
        lambda_h=1e3,
        batch=60,
        adam=False,
        ridge=0.0,
    )
    omega = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=F)
    expected, _ = naive_step(EYE, omega, x_p, pair[0].targets(y_p), x_h, settings)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_balancing_gives_every_term_the_same_pull(pair):
    details = immunize(EYE, *pair, "condition").record.figures["details"]
    given = immunize(
        EYE,
        *pair,
        "condition",
        lambda_primary=details["lambda_primary"],
        lambda_harmful=details["lambda_harmful"],
    ).record.figures["details"]
    assert given == details


def test_erase_leaves_linear_probes_nothing(pair):
    result = immunize(EYE, *pair, "erase", strength=0.0)
    after = gram(pair[1], as_extractor(result.model))
    assert rho_of_gram(after, 0.0) < 1e-12
    assert rho_of_gram(gram(pair[1]), 0.0) > 0.1
    assert not result.exact


def test_erase_interpolates_from_nothing_to_everything(pair):
    assert torch.equal(immunize(EYE, *pair, "erase", strength=1.0).model.weight, EYE)
    half = immunize(EYE, *pair, "erase", strength=0.5).model.weight
    full = immunize(EYE, *pair, "erase", strength=0.0).model.weight
    torch.testing.assert_close(half, (EYE + full) / 2)


@pytest.mark.parametrize("labels", ["classes", "values"])
def test_erase_equals_the_concept_erasure_package(labels):
    concept_erasure = pytest.importorskip("concept_erasure")
    x = torch.randn(200, 6, dtype=F) @ torch.randn(6, 6, dtype=F)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    if labels == "values":
        y = x[:, :2] @ torch.randn(2, 2, dtype=F) + torch.randn(200, 2, dtype=F)
    task = Task((x, y))
    fitter = concept_erasure.LeaceFitter.fit(
        x, task.targets(y), shrinkage=False, constrain_cov_trace=False, svd_tol=1e-12
    )
    ours, rank = eraser(gram(task))
    assert rank == 2
    torch.testing.assert_close(ours, fitter.eraser.P, rtol=1e-8, atol=1e-8)


def test_erase_of_unrelated_labels_says_there_is_nothing_to_erase():
    x = torch.tensor([[1.0, 0], [-1, 0], [1, 0], [-1, 0]]) @ torch.randn(2, 2)
    task = Task((torch.cat([x, -x]), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])))
    with pytest.raises(InputError, match="nothing to erase"):
        eraser(gram(task))


def test_imma_differentiates_through_the_attacker(pair):
    p = problem(*pair)
    settings = ImmaSettings(inner_steps=3, inner_step=1e-3)
    head = torch.randn(5, 3, dtype=F)
    theta = torch.randn(5, 5, dtype=F, requires_grad=True)

    def upper(t):
        return l2_loss(attacked(t, head, p, settings), head, p.k_harmful, p.b_harmful)

    assert torch.autograd.gradcheck(upper, (theta,))
    direct = l2_loss(theta, head, p.k_harmful, p.b_harmful)
    assert upper(theta) < direct  # the attacker descends


def test_l2_loss_from_moments_equals_the_mean_squared_error(pair):
    p = problem(*pair)
    x, y = pair[1].train.tensors()
    theta, head = torch.randn(5, 5, dtype=F), torch.randn(5, 3, dtype=F)
    errors = (x.to(F) / p.scale @ theta @ head - pair[1].targets(y)).square().sum(1).mean()
    constant = pair[1].targets(y).square().sum(1).mean()
    torch.testing.assert_close(l2_loss(theta, head, p.k_harmful, p.b_harmful) + constant, errors)


def test_r_ill_raises_the_harmful_condition_number(pair):
    ratio = relative_immunization_ratio(immunize(EYE, *pair, "r_ill").model, *pair)
    assert ratio.harmful > 1


def test_opt_kappa_lowers_its_objective(pair):
    result = immunize(EYE, *pair, "opt_kappa", step=0.01)
    figures = result.record.figures["spectra"]

    def objective(when):
        p, h = (figures[task][when]["condition_number"] for task in ("primary", "harmful"))
        return p - h

    assert objective("after") < objective("before")


def test_mini_batches_pair_the_longer_set_with_a_cycled_shorter_one():
    long, short = make_task(80, name="long"), make_task(40, name="short")
    p = LinearProblem(EYE, gram(long), gram(short), (long, short))
    found = list(batches(p, 2, 16))
    assert len(found) == 2 * 4  # 60 training rows in batches of 16
    assert [len(b[0]) for b in found[:4]] == [len(b[2]) for b in found[:4]] == [16, 16, 16, 12]
    seen = torch.cat([b[0] for b in found[:4]])
    expected = long.train.tensors()[0].to(F)
    assert sorted(seen[:, 0].tolist()) == sorted(expected[:, 0].tolist())


def test_lost_directions_never_flatter(pair):
    p = problem(*pair)
    squashed = torch.diag(torch.tensor([1.0, 1, 1, 1, 1e-12], dtype=F))
    assert p.rir(squashed) == 0
    with pytest.warns(RankWarning, match="unlike things"):
        relative_immunization_ratio(torch.diag(torch.tensor([1.0, 1, 1, 1, 0])), *pair)


def test_a_method_of_forty_lines_can_be_added(pair, monkeypatch):
    from immunis.methods.base import Descent, Method

    def solve(problem, settings):
        return Solution(problem.theta * 2, {"note": "twice"})

    monkeypatch.setitem(METHODS, "double", Method("double", "θ times two", Descent, solve))
    result = immunize(EYE, *pair, "double")
    torch.testing.assert_close(result.model.weight.data, 2 * EYE)
    assert result.record.figures["rir"]["value"] == pytest.approx(1)


def test_no_method_warns_on_healthy_data(pair):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in LINEAR:
            _ = immunize(EYE, *pair, method).record
