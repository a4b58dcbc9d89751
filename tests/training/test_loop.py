"""The training loop: it learns, freezes, resumes to the bit and fails clearly."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from helpers.networks import image_task, small_net, tasks
from helpers.training import SHORT, Broken, Plain, objective, run, states_equal, whole
from immunis import InputError, NumericalError, Task, immunize
from immunis.data.split import Corrupt
from immunis.methods import METHODS, get_method
from immunis.models.find_cut import cut
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.settings import Training

DEEP = [name for name, method in METHODS.items() if method.objective is not None]


def test_pretraining_learns_the_primary_task():
    training = Training(
        layers=["*"], epochs=4, batch=32, rate=1e-2, batchnorm="update", augment=False
    )
    result = fit(whole(), supervised_only(), tasks()[0], None, training)
    assert result.history[0]["primary"] < 0.6
    assert max(row["primary"] for row in result.history) > 0.8
    assert not result.model.training


@pytest.mark.parametrize("name", DEEP)
class TestEveryDeepMethod:
    def test_changes_chosen_layers_and_the_head_only(self, name):
        before = small_net().state_dict()
        after = run(name).model.state_dict()
        assert list(after) == list(before)
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        assert changed == {
            "3.0.weight", "3.0.bias", "3.1.weight", "3.1.bias", "6.weight", "6.bias",
        }  # fmt: skip

    def test_the_same_seed_gives_the_same_weights(self, name):
        first, second, other = run(name), run(name), run(name, seed=1)
        assert states_equal(first.model.state_dict(), second.model.state_dict())
        assert not states_equal(first.model.state_dict(), other.model.state_dict())

    def test_a_killed_run_resumes_to_the_bit(self, name, tmp_path):
        class KilledError(Exception):
            pass

        def kill(what, share):
            if share > 0.6:
                raise KilledError

        straight = run(name)
        with pytest.raises(KilledError):
            run(name, folder=tmp_path, progress=kill)
        resumed = run(name, folder=tmp_path, resume=True)
        assert states_equal(straight.model.state_dict(), resumed.model.state_dict())
        assert resumed.history == straight.history
        assert resumed.weights == straight.weights

    def test_accumulation_is_exact(self, name):
        whole_batch = run(name, dataclasses.replace(SHORT, steps=2, evaluate=1))
        parts = run(name, dataclasses.replace(SHORT, steps=2, evaluate=1, accumulate=3))
        # Adam's first steps have size one whatever the gradient: rounding can flip a sign
        # where it is zero. IMMA's finite differences see more of it.
        slack = 2e-2 if name == "imma" else 1e-3
        for key, value in whole_batch.model.state_dict().items():
            other = parts.model.state_dict()[key]
            assert torch.allclose(value.float(), other.float(), atol=slack), key

    def test_a_plain_model_comes_back(self, name):
        primary, harmful = tasks()
        model = small_net()
        result = immunize(model, primary, harmful, name, training=SHORT)
        assert type(result.model) is type(model)
        fresh = small_net(seed=3)
        fresh.load_state_dict(result.model.state_dict())
        x = primary.test.first(4)
        assert torch.equal(fresh(x), result.model(x))
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in result.model.modules())
        assert result.head is result.model[6]
        record = result.record
        assert record.settings["method"] == name
        assert record.figures["details"]["steps"] == 8
        inputs, labels = primary.test.tensors()
        right = (result.model(inputs).argmax(1) == labels).double().mean()
        assert record.figures["primary_score"]["after"] == pytest.approx(float(right))


def test_features_that_overflow_between_evaluations_are_told_with_the_step():
    training = dataclasses.replace(SHORT, rate=1e30, clip=1e30, warmup=0.0, evaluate=2)
    with pytest.raises(NumericalError, match=r"diverged at step 2: .* Lower the rate"):
        run("probe", training)


def test_data_may_come_as_dataset_or_loader_with_the_same_result():
    primary, harmful = tasks()
    straight = run("probe")
    for wrap in (Plain, lambda t: DataLoader(Plain(t), batch_size=7, shuffle=True)):
        lazy = [
            Task(wrap(t), t.test.tensors(), t.name, classes=t.outputs) for t in (primary, harmful)
        ]
        again = fit(whole(), objective("probe"), *lazy, SHORT)
        assert states_equal(straight.model.state_dict(), again.model.state_dict())


def test_iterable_data_is_refused():
    class Flow(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from zip(*image_task(40).train.tensors(), strict=True)

    lazy = Task(DataLoader(Flow(), batch_size=8), name="flow", classes=4)
    with pytest.raises(InputError, match="__getitem__"):
        fit(whole(), supervised_only(), lazy, None, SHORT)


def test_regression_tasks_train_too():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator)
    first = Task((x, x[:, 0] + x[:, 1]), (x, x[:, 0] + x[:, 1]), "sum")
    second = Task((x, x[:, 2] * 2), (x, x[:, 2] * 2), "third")
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    training = Training(layers=["*"], steps=30, batch=64, harmful_batch=128, rate=1e-2, tolerance=9)
    part = cut(model, x[:2], 1)
    method = get_method("probe")
    goal = method.objective(method.configure({"weight": 10.0}, network=True), part)
    result = fit(part, goal, first, second, training)
    assert result.history[-1]["rho"] < result.history[0]["rho"]


def test_a_batch_of_nothing_but_corrupt_samples_keeps_its_place():
    class Spoiled(Plain):
        def __getitem__(self, index):
            return Corrupt("row 3", "spoiled") if index == 3 else super().__getitem__(index)

    primary, harmful = tasks()
    lazy = Task(Spoiled(primary), primary.test.tensors(), "primary", classes=4)
    training = dataclasses.replace(SHORT, batch=1, steps=200, evaluate=4)
    with pytest.warns(UserWarning, match="skipped row 3"):
        result = fit(whole(), supervised_only(), lazy, harmful, training)
    assert result.steps == 200
    assert lazy.train.corrupt == {"row 3"}


@pytest.mark.filterwarnings("ignore:.*skipped")
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, batch_size=16)])
def test_unreadable_rows_of_a_users_data_set_are_skipped_and_counted(wrap):
    primary, harmful = tasks()
    one = Broken(harmful, {5}, OSError("truncated file"))

    def go(data):
        broken = Task(wrap(data), harmful.test.tensors(), "harmful", classes=harmful.outputs)
        return immunize(small_net(), primary, broken, "probe", training=SHORT)

    with pytest.warns(UserWarning, match="skipped sample 5.*OSError: truncated"):
        result = go(one)
    assert result.record.figures["details"]["skipped"]["harmful"] == ["sample 5"]
    many = Broken(harmful, set(range(0, 100, 3)), SyntaxError("broken PNG"))
    with pytest.raises(InputError, match="cannot be read"):
        go(many)


def test_curves_are_written_for_tensorboard(tmp_path):
    run("probe", folder=tmp_path / "with")
    assert list(tmp_path.glob("with/events.out.tfevents.*"))
