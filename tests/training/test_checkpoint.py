"""Checkpoints: resumed to the bit, or refused with a reason."""

import dataclasses
import io
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from helpers.networks import image_task, small_net, tasks
from helpers.training import SHORT, Plain, objective, run, states_equal, whole, with_a_scaler
from immunis import InputError, NumericalError, OutputError, SettingsError, Task, immunize
from immunis.models.find_cut import cut
from immunis.models.weights import load_weights
from immunis.training import checkpoint as checkpoints
from immunis.training.loop import fit
from immunis.training.objective import SUPERVISED, Objective
from immunis.training.settings import Hardware


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    calls = []

    def terms(view):
        calls.append(1)
        poison = float("nan") if len(calls) > 5 else 1.0
        return {SUPERVISED: view.supervised * poison}

    primary, harmful = tasks()
    training = dataclasses.replace(SHORT, steps=8, evaluate=8)
    with pytest.raises(NumericalError, match=r"diverged at step 6: supervised.*checkpoint\.pt"):
        fit(whole(), Objective(terms), primary, harmful, training, folder=tmp_path)
    state = checkpoints.read(tmp_path / checkpoints.NAME)
    assert state["step"] == 5
    assert all(torch.isfinite(t).all() for t in state["model"].values() if t.is_floating_point())


def test_a_checkpoint_holds_the_loss_scale_of_half_precision(tmp_path, monkeypatch):
    loaded = []
    plugin = "lightning.fabric.plugins.precision.precision.Precision"
    monkeypatch.setattr(f"{plugin}.state_dict", lambda self: {"scale": 512.0})
    monkeypatch.setattr(f"{plugin}.load_state_dict", lambda self, state: loaded.append(state))
    run("probe", folder=tmp_path)
    run("probe", folder=tmp_path, resume=True)
    assert loaded == [{"scale": 512.0}]


def test_a_run_resumes_in_another_precision(tmp_path):
    primary, harmful = tasks()
    training = dataclasses.replace(SHORT, steps=4, evaluate=2)

    def stop(what, share):
        if share > 0.5:
            raise KeyboardInterrupt

    def go(hardware=None, **more):
        return fit(
            whole(), objective("probe"), primary, harmful, training, hardware,
            folder=tmp_path, resume=True, **more,
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        go(progress=stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("immunis.training.settings.Hardware.fabric", with_a_scaler(Hardware.fabric))
        found = go(Hardware(precision="bf16-mixed"))
    assert found.steps == 4
    assert "the first 2 steps were taken in 32-true, the others in bf16-mixed." in (found.notes)


def test_foreign_and_damaged_checkpoints_are_refused(tmp_path):
    run("probe", folder=tmp_path)
    primary, harmful = tasks()
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    part = cut(other, primary.train.first(2), 4)
    with pytest.raises(InputError, match="another model"):
        fit(part, objective("probe", part), primary, harmful, SHORT, folder=tmp_path, resume=True)
    with pytest.raises(InputError, match="another run, which differs in: seed"):
        run("probe", folder=tmp_path, resume=True, seed=5)
    faster = dataclasses.replace(SHORT, rate=1.0, clip=2.0, workers=1)
    with pytest.raises(InputError, match="differs in: clip, rate"):
        run("probe", faster, folder=tmp_path, resume=True)
    path = tmp_path / checkpoints.NAME
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="damaged.*Delete it to start afresh"):
        run("probe", folder=tmp_path, resume=True)


def test_a_checkpoint_never_unpickles_objects(tmp_path):
    class Evil:
        def __reduce__(self):
            return (sys.exit, (7,))

    buffer = io.BytesIO()
    torch.save({"format": checkpoints.FORMAT, "model": Evil()}, buffer)
    content = checkpoints.head_of(buffer.getvalue()) + buffer.getvalue()
    (tmp_path / checkpoints.NAME).write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        run("probe", folder=tmp_path, resume=True)


def test_resume_without_a_checkpoint_starts_afresh(tmp_path):
    assert run("probe", folder=tmp_path, resume=True).steps == 8
    with pytest.warns(UserWarning, match=r"checkpoint\.pt belongs to an earlier run.*be replaced"):
        run("probe", folder=tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    place = tmp_path / "file"
    place.write_text("taken")
    with pytest.raises(OutputError, match="cannot write to output folder"):
        run("probe", folder=place)


def test_a_resumed_run_knows_what_was_noted_before(tmp_path):
    flat = Objective(
        lambda view: {SUPERVISED: view.supervised, "flat": 0.0 * view.logits.sum()}, {"flat": None}
    )
    primary, harmful = tasks()

    def half(what, share):
        if share > 0.6:
            raise KeyboardInterrupt

    primary.train.corrupt.add("a picture")
    with pytest.warns(UserWarning, match="flat has no gradient"), pytest.raises(KeyboardInterrupt):
        fit(whole(), flat, primary, harmful, SHORT, folder=tmp_path, progress=half)
    primary, harmful = tasks()
    found = fit(whole(), flat, primary, harmful, SHORT, folder=tmp_path, resume=True)
    assert any("flat has no gradient" in note for note in found.notes)
    assert primary.train.corrupt == {"a picture"}


def test_resume_refuses_another_method_setting_or_data(tmp_path):
    primary, harmful = tasks()

    def go(method="probe", other=harmful, **settings):
        if method == "probe":
            settings = {"weight": 10.0, **settings}
        return immunize(
            small_net(), primary, other, method, training=SHORT, folder=tmp_path, resume=True,
            **settings,
        )  # fmt: skip

    go()
    other = image_task(150, 5, seed=9, name="harmful")
    for change in ({"weight": 30.0}, {"method": "r_ill"}, {"other": other}):
        with pytest.raises(InputError, match="another run"):
            go(**change)


def test_a_finished_run_resumes_to_itself_also_from_streamed_data(tmp_path):
    primary, harmful = tasks()
    lazy = [Task(Plain(t), t.test.tensors(), t.name, classes=t.outputs) for t in tasks()]
    for pair, place in (((primary, harmful), tmp_path / "a"), (lazy, tmp_path / "b")):
        done = [
            fit(whole(), objective("probe"), *pair, SHORT, folder=place, resume=True)
            for _ in range(2)
        ]
        assert states_equal(*(r.model.state_dict() for r in done))
        assert done[0].steps == done[1].steps == 8


def test_patience_stops_a_resumed_run_where_it_stopped(tmp_path):
    training = dataclasses.replace(SHORT, steps=40, evaluate=20, patience=2, rate=1e-6)
    found = [run("probe", training, folder=tmp_path, resume=True).steps for _ in range(3)]
    assert found[0] == found[1] == found[2] < 40


def test_resume_needs_a_folder():
    with pytest.raises(SettingsError, match="give folder="):
        run("probe", resume=True)


class Versioned(nn.Linear):
    """Refuses a state without its version, as torchvision's MNASNet does."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *more):
        if metadata.get("version") != 2:
            raise ValueError("version should be set to 2")
        super()._load_from_state_dict(state, prefix, metadata, *more)


def test_states_keep_the_versions_of_their_modules(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(120, 12)
    pair = [Task((inputs, inputs[:, a : a + 3].argmax(1)), name=n) for a, n in ((0, "p"), (3, "h"))]

    def made():
        torch.manual_seed(1)
        return nn.Sequential(Versioned(12, 8), nn.ReLU(), nn.Linear(8, 3)).eval()

    results = [
        immunize(made(), *pair, "probe", training=SHORT, folder=tmp_path, resume=True).model
        for _ in range(2)  # the second from a checkpoint
    ]
    assert states_equal(*(model.state_dict() for model in results))
    save_file(results[0].state_dict(), tmp_path / "m.safetensors")
    again = made()
    load_weights(again, tmp_path / "m.safetensors")
    assert states_equal(again.state_dict(), results[0].state_dict())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))  # torch's own: older states load
    old = {k: v for k, v in model.state_dict().items() if "num_batches" not in k}
    save_file(old, tmp_path / "old.safetensors")
    load_weights(model, tmp_path / "old.safetensors")
