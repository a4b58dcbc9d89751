"""The released training of networks, beside a port written from the released files alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.networks import small_net, tasks
from helpers.released_network import naive_algorithm_1, naive_opt_kappa, naive_r_ill, naive_steps
from immunis import NumericalError
from immunis.data.loader import Stream
from immunis.data.transforms import SCALINGS, normalised
from immunis.models.find_cut import cut
from immunis.paper import released_network as released
from immunis.theory.spectrum import reference_condition_number

SETTINGS = released.Settings(1e-3, 1e-4, 1e2, steps=10, batch=12)


@pytest.fixture
def network():
    return cut(small_net(), tasks()[0].train.first(2), 4)


@pytest.fixture
def streams():
    return [Stream(task, SETTINGS.batch) for task in tasks()]


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize(
    ("method", "naive"),
    [("algorithm_1", naive_algorithm_1), ("r_ill", naive_r_ill), ("opt_kappa", naive_opt_kappa)],
)
def test_steps_are_those_of_the_released_code(network, streams, monkeypatch, method, naive, steps):
    monkeypatch.setattr(released, "augmented", lambda images, *_: images)
    settings = released.Settings(1e-3, 1e-4, 1e2, steps, batch=12)
    batches = list(zip(*(stream.batches(0, steps) for stream in streams), strict=True))
    expected = copy.deepcopy(network.model).double().train()
    naive_steps(expected[:3], expected[3:6], expected[6], batches, settings, naive)
    network.model.double()
    found = released.train(network, streams, method, settings).model
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(
            found.state_dict()[name], value, rtol=1e-6, atol=1e-9
        )  # rounding of σ_min over 1e-6
    moved = torch.equal(found[0].weight, network.model[0].weight)
    assert moved and not torch.equal(found[1].running_mean, network.model[1].running_mean)


def test_imma_differentiates_through_the_attackers_step(monkeypatch):
    """The gradient is ``v − c·∇²L_H·v`` with v that of the upper loss at θ* (two flat layers)."""
    monkeypatch.setattr(released, "INNER", 0.3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.Linear(6, 4)).double().eval()
    x_p, x_h = torch.randn(2, 9, 5, dtype=torch.float64)
    y_p, y_h = torch.randint(0, 4, (9,)), torch.randint(0, 3, (9,))
    whole = cut(model, x_p[:2], 4)
    student = released.WithFeatures(whole)
    loss = released.METHODS["imma"](whole, 3)(student, (x_p, y_p), (x_h, y_h), SETTINGS)
    (found,) = torch.autograd.grad(loss, model[0].weight)

    theta = model[0].weight.detach()
    at = (x_h @ theta.T).norm(dim=1).mean()  # lengths and w count as constants
    one_hot = functional.one_hot(y_h, 3).double()
    w = (0.9 * one_hot + 0.1 / 3 - 1 / 3).T @ (x_h @ theta.T) / at / 9  # a step of one from zero

    def entropy(t, length):
        return released.cross_entropy(x_h @ t.T / length @ w.T, y_h)

    gradient = torch.func.grad(entropy)(theta, at)
    c = 0.3 * theta.norm() / gradient.norm()
    star = theta - c * gradient
    there = (x_h @ star.T).norm(dim=1).mean()

    def upper(t):
        return released.cross_entropy(model[1](x_p @ t.T), y_p) - entropy(t, there)

    v = torch.func.grad(upper)(star)
    curvature = torch.func.hessian(entropy)(theta, at)
    expected = v - c * torch.einsum("abcd,cd->ab", curvature, v)
    torch.testing.assert_close(loss, upper(star))
    torch.testing.assert_close(found, expected)


def test_kappa_is_the_released_one_on_either_side_of_the_rank():
    torch.manual_seed(0)
    for rows, width in ((20, 50), (50, 20)):
        z = torch.randn(rows, width, dtype=torch.float64)
        expected = reference_condition_number(z.T @ z)
        assert float(released.log_kappa(z).exp()) == pytest.approx(expected, rel=1e-6)
        noisy = z * (1 + 1e-15 * torch.randn_like(z))
        assert float(released.log_kappa(noisy).exp()) == pytest.approx(expected, rel=1e-6)


def test_groups_compare_both_networks_on_the_same_rows(network, streams):
    same = released.group_ratios(network, network, streams, groups=3)
    assert same == {"harmful": 1.0, "primary": 1.0, "rir": 1.0}
    other = network.copy()
    with torch.no_grad():
        for parameter in other.model[3][1].parameters():  # features of twice the length
            parameter *= 2
    before = {k: v.clone() for k, v in network.model.state_dict().items()}
    found = released.group_ratios(network, other, streams, groups=3)
    # 12 rows in 16 dimensions: kappa measures the length of features and nothing else
    assert found["harmful"] == pytest.approx(4, rel=1e-6)
    assert found["rir"] == pytest.approx(1, rel=1e-6)
    assert all(torch.equal(v, before[k]) for k, v in network.model.state_dict().items())


def test_every_method_returns_a_network_in_evaluation_mode(network, streams):
    before = {k: v.clone() for k, v in network.model.state_dict().items()}
    settings = released.Settings(1e-4, 1e-6, 1.0, steps=2, batch=12)
    for method in released.METHODS:
        found = released.train(network, streams, method, settings, seed=1).model
        again = released.train(network, streams, method, settings, seed=1).model
        assert not found.training and found[0].weight.dtype == torch.float32
        for name, value in found.state_dict().items():
            assert torch.equal(value, again.state_dict()[name])
    assert all(torch.equal(v, before[k]) for k, v in network.model.state_dict().items())


def test_norms_train_with_the_last_stage():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.ModuleDict({"norm": nn.LayerNorm(6), "mlp": nn.Linear(6, 6)}) for _ in range(3)
            )
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            for block in self.blocks:
                x = x + block["mlp"](block["norm"](x)).relu()
            return self.head(x)

    whole = cut(Normed().eval(), torch.randn(2, 6), 4)
    assert len(released.trained_parameters(whole)) == 4 + 2 * 2  # the last block, two more norms
    frozen = [n for n, p in whole.model.named_parameters() if not p.requires_grad]
    assert frozen == [f"blocks.{i}.mlp.{kind}" for i in range(2) for kind in ("weight", "bias")]


def test_a_run_that_diverges_says_where(network, streams):
    wild = released.Settings(1e30, 1.0, 1.0, steps=5, batch=12)
    with pytest.raises(NumericalError, match="not finite at step . of 5"):
        released.train(network, streams, "algorithm_1", wild)


@pytest.mark.parametrize("method", released.METHODS)
def test_a_network_that_is_not_finite_is_told(network, streams, method):
    with torch.no_grad():
        network.model[3][0].weight.fill_(float("nan"))
    with pytest.raises(NumericalError, match="not finite at step 1 of 10"):
        released.train(network, streams, method, SETTINGS)
    with pytest.raises(NumericalError, match="group"):
        released.group_ratios(network, network, streams, groups=1)


class TestAugmentation:
    def images(self, n=400):
        ramp = torch.linspace(0, 255, 32).round().to(torch.uint8)
        return normalised(ramp.expand(n, 3, 32, 32), "clip")

    def test_crops_flips_and_colours_as_timm_does(self):
        images = self.images()
        found = released.augmented(images, torch.Generator().manual_seed(0), "clip")
        mean, std = (torch.tensor(v)[:, None, None] for v in SCALINGS["clip"])
        pixels = found * std + mean
        assert found.shape == images.shape
        assert float(pixels.min()) >= -1e-6 and float(pixels.max()) <= 1 + 1e-6
        slope = (pixels[..., -1] - pixels[..., 0]).mean((1, 2))  # of the ramp: the width seen
        assert 0.4 < float((slope > 0).double().mean()) < 0.6
        grey = pixels.std(1).amax()
        assert float(grey) < 1e-5  # a grey image stays grey
        again = released.augmented(images, torch.Generator().manual_seed(0), "clip")
        assert torch.equal(found, again)

    def test_the_area_is_that_of_a_random_resized_crop(self, monkeypatch):
        monkeypatch.setattr(released, "JITTER", 0.0)
        found = released.augmented(self.images(2000), torch.Generator().manual_seed(1), "clip")
        mean, std = (torch.tensor(v)[:, None, None] for v in SCALINGS["clip"])
        pixels = found * std + mean
        width = (pixels[:, 0, 0, -1] - pixels[:, 0, 0, 0]).abs()
        # E sqrt(area * aspect) of areas in 8% to 100% that fit: about 0.7
        assert 0.6 < float(width.mean()) < 0.75
        assert float(width.min()) > 0.15
