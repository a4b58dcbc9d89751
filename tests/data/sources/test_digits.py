"""The bundled digits."""

import pytest
import torch

from immunis import InputError
from immunis.data.sources import digit_parity, digits
from immunis.models.zoo import pretrained_mlp


def test_digits_are_split_without_overlap(digit_tasks):
    parts = [
        set(split.row_hashes())
        for split in (
            digit_tasks.harmful.train,
            digit_tasks.attacker.train,
            digit_tasks.harmful.test,
        )
    ]
    assert [len(p) for p in parts] == [360, 269, 267]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert digit_tasks.primary.classes == (0, 1, 2, 3, 4)
    assert digits(seed=1).harmful.train.fingerprint() != digit_tasks.harmful.train.fingerprint()
    assert digits().harmful.train.fingerprint() == digit_tasks.harmful.train.fingerprint()


@pytest.mark.parametrize(
    "bad", [{"primary": []}, {"primary": [1, 10]}, {"primary": [1, 2], "harmful": [2, 3]}]
)
def test_impossible_digits_are_refused(bad):
    with pytest.raises(InputError, match="digits"):
        digits(**bad)


def test_digit_parity_keeps_its_samples_apart():
    tasks = digit_parity(shots=30)
    assert tasks.primary.outputs == 10
    assert tasks.attacker.classes == (0, 1)
    splits = [tasks.harmful.train, tasks.attacker.train, tasks.attacker.test]
    rows = [set(split.row_hashes()) for split in splits]
    assert len(rows[1]) == 30
    assert not rows[0] & rows[1] | rows[0] & rows[2] | rows[1] & rows[2]
    assert tasks.transfer[0].name == "at least five"
    with pytest.raises(InputError, match="shots=5"):
        digit_parity(shots=5)


def test_a_small_network_is_trained_the_same_each_time():
    tasks = digit_parity()
    a, b = (pretrained_mlp(tasks.primary, (16,), epochs=10) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    x, y = tasks.primary.test.tensors()
    assert float((a(x).argmax(1) == y).double().mean()) > 0.5
    with pytest.raises(InputError, match="flat inputs"):
        pretrained_mlp(tasks.primary, ())
