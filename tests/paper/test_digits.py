"""MNIST's digits as tasks."""

import numpy as np
import pytest

from immunis import InputError
from immunis.data.sources.digit_images import mnist_images
from immunis.paper import digits


def test_the_paper_s_tasks_are_as_many_of_both_digits_drawn_by_the_seed(mnist_folder):
    _, found = mnist_images(True, mnist_folder)
    (p, zeros), (h, ones) = digits.paired_rows(found, "paper", (3, 7), 0)
    assert len(p) == len(h) == min((found == 3).sum(), (found == 7).sum())
    assert set(found[p]) == {3} and set(found[h]) == {7}
    assert set(zeros) == {0} and set(ones) == {1}
    assert len(set(p)) == len(p)
    other = digits.paired_rows(found, "paper", (3, 7), 1)
    assert p.tolist() != other[0][0].tolist()


def test_the_binary_protocol_is_balanced_and_its_samples_are_apart(mnist_folder):
    train, test = (mnist_images(part, mnist_folder) for part in (True, False))
    (p, _), (h, _) = digits.paired_rows(train[1], "binary", (3, 7), 0)
    seen = [{*p.tolist()}, {*h.tolist()}, {*digits.against_rest(train[1], 7, 2)[0].tolist()}]
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    for part in range(3):
        _, labels = digits.against_rest(train[1], 3, part)
        assert abs(int(labels.sum()) * 2 - len(labels)) <= 9
    few = digits.attacker_samples(train, test, 3, 20, seed=0)
    assert np.bincount(few.train.labels).tolist() == [10, 10]
    assert len(few.test.labels) == len(digits.against_rest(test[1], 3)[1])


@pytest.mark.parametrize(
    ("text", "says"), [("3-7,37", "'3-7,37': expected pairs"), ("3-10", "as in 3-7")]
)
def test_what_is_no_pair_of_digits_is_refused(text, says):
    with pytest.raises(InputError, match=says):
        digits.read_pairs(text)
