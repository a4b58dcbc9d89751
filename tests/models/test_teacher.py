"""The teacher takes over frozen layers' outputs where that changes nothing, and only there."""

import dataclasses

import pytest
import torch
from torch import nn

from helpers.networks import add_gradients, small_net, tasks
from immunis.methods import get_method
from immunis.models.find_head import cut
from immunis.models.teacher import Teacher, agree
from immunis.training.hardware import Hardware
from immunis.training.loop import fit
from immunis.training.settings import Training
from immunis.training.setup import prepare
from immunis.training.step import _answers, draw

SETTINGS = {"distillation": 1.0, "keep": 2.0}
SHORT = Training(steps=3, batch=48, harmful_batch=96, rate=3e-3, evaluate=1)


class Net(nn.Module):
    """Frozen ``a`` and ``b`` below a trained ``c``, joined in a way that each test chooses."""

    def __init__(self, way="chain"):
        super().__init__()
        torch.manual_seed(3)
        self.way = way
        self.flat, self.act = nn.Flatten(), nn.Tanh()
        self.a, self.b, self.c = nn.Linear(192, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        if way == "zero in place":
            nn.init.zeros_(self.c.weight)
            nn.init.zeros_(self.c.bias)

    def forward(self, x):
        a = self.a(self.flat(x)).tanh()
        b = self.b(a) if self.way not in ("stop", "activation") else a
        if self.way == "skip":  # from below b to above it
            return self.head(self.c(b.tanh()) + a)
        if self.way == "twice":  # b again, on what is trained
            return self.head(self.b(self.c(b.tanh()).tanh()))
        if self.way == "inputs":
            return self.head(self.c(b.tanh()) + x.flatten(1)[:, :16])
        if self.way == "zero in place":  # what b gave is changed, at the start by nothing
            b += self.c(b.tanh())
            return self.head(b)
        if self.way == "stop":  # b's output has no gradient, and yet depends on what is trained
            c = self.c(x.flatten(1)[:, :16])
            return self.head(c + self.b(c.detach()))
        if self.way == "activation":  # one module below and above
            return self.head(self.act(self.c(self.b(self.act(a)))))
        return self.head(self.c(b.tanh()))


def whole(model):
    return cut(model.eval(), tasks()[0].train.first(2), 4)


def run_of(model, training=SHORT, hardware=None, method="probe", **settings):
    method, part = get_method(method), whole(model)
    goal = method.objective(method.configure(SETTINGS | settings, network=True), part)
    return prepare(part, goal, *tasks(), training, hardware or Hardware(), 0)


def steps_of(run, count=3):
    """Terms and gradients of a few steps."""
    found = []
    for step, batch, other in run.batches(0, count):
        values = add_gradients(run, draw(run, step, batch, other))
        found.append((values, [p.grad.clone() for p in run.body]))
        run.optimizer.step()
    return found


def without(monkeypatch, build):
    """The same run with a teacher that shares nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(Teacher, "share", lambda *_: None)
        return build()


def assert_same(found, wanted):
    for (values, gradients), (others, expected) in zip(found, wanted, strict=True):
        assert values == pytest.approx(others, rel=1e-4, abs=1e-6)
        for a, b in zip(gradients, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def count_calls(run, names):
    """Count how often modules of the teacher really run."""
    calls = dict.fromkeys(names, 0)
    for name in names:
        module = run.teacher._cut.model.get_submodule(name)

        class Counted(type(module)):
            def forward(self, *args, _name=name):
                calls[_name] += 1
                return super().forward(*args)

        module.__class__ = Counted
    return calls


class Refuses(Net):
    """A model that does not go on with what is not finite."""

    def forward(self, x):
        x = super().forward(x)
        assert bool(x.isfinite().all())
        return x


class Placed(Net):
    """A frozen module whose output has as many rows as the search, and not as the batch."""

    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(3, 192)

    def forward(self, x):
        return super().forward(x.flatten(1) + self.place(torch.arange(3)).sum(0))


class Tied(Net):
    """One module under two names, both in use."""

    def __init__(self):
        super().__init__()
        self.d = self.c

    def forward(self, x):
        return self.head(self.d(self.c(self.a(self.flat(x)).tanh()).tanh()))


@pytest.mark.parametrize("build", [Refuses, Placed, Tied])
def test_odd_models_are_trained_as_without_sharing(monkeypatch, build):
    training = dataclasses.replace(SHORT, layers=["c"])
    alone = without(monkeypatch, lambda: run_of(build(), training))
    assert_same(steps_of(run_of(build(), training)), steps_of(alone))


@pytest.mark.parametrize("batchnorm", ["freeze", "update"])
@pytest.mark.parametrize("recall", [False, True])
@pytest.mark.parametrize("settings", [{}, {"attacker_steps": 1}, {"weight": 1.0}])
def test_terms_and_gradients_are_those_of_a_whole_pass(monkeypatch, batchnorm, settings, recall):
    training = dataclasses.replace(SHORT, layers=["3"], batchnorm=batchnorm)

    def build():
        return run_of(small_net(), training, recall=recall, **settings)

    alone, sharing = without(monkeypatch, build), build()
    assert not alone.teacher.shares
    found = steps_of(sharing)
    assert sharing.teacher.shares
    assert_same(found, steps_of(alone))


def test_frozen_layers_of_the_teacher_run_once_to_check_and_never_again():
    run = run_of(small_net(), dataclasses.replace(SHORT, layers=["3"]))
    calls = count_calls(run, ["0", "2", "3.0", "6"])
    steps_of(run)
    assert calls == {"0": 1, "2": 1, "3.0": 5, "6": 5}  # two of them to compare
    run = run_of(small_net(), dataclasses.replace(SHORT, layers=["3"]), recall=True)
    calls = count_calls(run, ["0", "2", "3.0", "6"])
    steps_of(run)
    assert calls == {"0": 1, "2": 1, "3.0": 5, "6": 5}  # harmful rows are asked about with the rest


def test_the_teacher_sees_what_is_wanted_and_no_more():
    training, without = dataclasses.replace(SHORT, layers=["3"]), {"distillation": 0.0, "keep": 0.0}

    def rows(training, **settings):
        run, found = run_of(small_net(), training, recall=True, **settings), []
        if run.teacher is None:
            return found
        model = run.teacher._cut.model
        model.register_forward_hook(lambda _, __, answers: found.append(len(answers)))
        steps_of(run)
        return found

    assert rows(training, **without) == [96, 96, 96]  # harmful rows alone
    assert rows(training, weight=0.0, **without) == []
    parts = rows(dataclasses.replace(training, accumulate=4))
    assert set(parts) == {36}  # a quarter of a step's


def test_only_the_layers_in_training_are_run_of_a_deep_network():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16),
        nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(6))),
        nn.Linear(16, 4),
    )  # fmt: skip
    run = run_of(model, dataclasses.replace(SHORT, layers=["2.5"]))
    assert run.teacher._last == "2.4"
    assert list(run.teacher._blanks) == ["0", "1", "2.0", "2.1", "2.2", "2.3", "2.4"]
    for blank in run.teacher._blanks.values():
        assert blank.isnan().all()
        assert blank.untyped_storage().nbytes() == 4


@pytest.mark.parametrize(
    ("way", "last"),
    [
        ("chain", "b"), ("skip", "a"), ("twice", "a"), ("inputs", "b"), ("activation", "b"),
        ("stop", "a"),
    ],
)  # fmt: skip
def test_any_way_past_an_output_is_found(monkeypatch, way, last):
    """Where b is no bottleneck the teacher takes a's output over, and runs b itself."""

    def build():
        return run_of(Net(way), dataclasses.replace(SHORT, layers=["c"]))

    sharing = build()
    assert sharing.teacher._last == last
    assert_same(steps_of(sharing), steps_of(without(monkeypatch, build)))


def test_an_output_changed_in_place_is_not_taken(monkeypatch):
    def build():
        return run_of(Net("zero in place"), dataclasses.replace(SHORT, layers=["c"]))

    assert_same(steps_of(build()), steps_of(without(monkeypatch, build)))


def test_a_student_that_is_not_the_original_below_is_not_believed(monkeypatch):
    def build():
        run = run_of(Net(), dataclasses.replace(SHORT, layers=["c"]))
        run.student.module.model.b.bias.data.add_(1.0)
        return run

    run = build()
    assert run.teacher.shares
    assert_same(steps_of(run), steps_of(without(monkeypatch, build)))
    assert not run.teacher.shares


@pytest.mark.parametrize(
    ("training", "hardware"),
    [
        ({"layers": ["*"]}, {}),
        ({"layers": ["a"]}, {}),
        ({"layers": ["c"], "accumulate": 2}, {}),
        ({"layers": ["c"]}, {"compile": True}),
    ],
)
def test_nothing_is_shared_where_passes_differ_or_all_is_trained(training, hardware):
    run = run_of(Net(), dataclasses.replace(SHORT, **training), Hardware(**hardware))
    teacher = run.teacher
    assert not teacher.shares or teacher._last == "flat"


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_other_precisions_agree(monkeypatch, precision):
    def build():
        training = dataclasses.replace(SHORT, layers=["3"])
        return run_of(small_net(), training, Hardware(precision=precision))

    found, wanted = steps_of(build()), steps_of(without(monkeypatch, build))
    for (values, _), (others, _) in zip(found, wanted, strict=True):
        assert values == pytest.approx(others, rel=0.05, abs=1e-3)


def test_no_hook_outlives_a_pass_and_the_answer_is_that_of_this_batch():
    run = run_of(small_net(), dataclasses.replace(SHORT, layers=["3"]))
    teacher = run.teacher
    rows, second = (draw(run, *batches) for batches in run.batches(0, 2))
    before = [len(m._forward_hooks) for m in run.student.modules()]
    inputs = second.primary[0]
    for batchnorm in ("freeze", "update"):
        run.training = dataclasses.replace(run.training, batchnorm=batchnorm)
        _answers(run, (rows.primary, rows.harmful), len(inputs) if run.joint else None)
        assert teacher._lent is not None
        _answers(run, (None, rows.harmful))
        _answers(run, (second.primary, None))
        answers = teacher(inputs)
        assert teacher._lent is None
        assert agree(answers, teacher(inputs))
    assert [len(m._forward_hooks) for m in run.student.modules()] == before
    run.student.module.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in run.student.modules())
    modules = [*run.student.modules(), *teacher._cut.model.modules()]
    assert not any("forward" in vars(m) for m in modules)


def test_the_model_comes_back_plain():
    training, part = dataclasses.replace(SHORT, layers=["3"]), whole(small_net())
    method = get_method("probe")
    goal = method.objective(method.configure(SETTINGS, network=True), part)
    model = fit(part, goal, *tasks(), training).model
    for m in (*model.modules(), *part.model.modules()):
        assert not (m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.1])
def test_agreement_is_free_of_scale_and_never_of_what_is_not_finite(bad):
    z = torch.randn(5, 4)
    for scale in (1e-30, 1.0, 1e30):
        assert agree([z * scale * (1 + 1e-4)], [z * scale])
        assert not agree([z * scale * bad], [z * scale])
    assert not agree([z * bad], [z * float("nan")])
    assert not agree([z], [z[:4]])
