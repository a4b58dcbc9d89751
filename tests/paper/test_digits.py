"""MNIST's digits as tasks, in the directions that a pair uses."""

import numpy as np
import pytest
import torch

from immunis import InputError
from immunis.data.sources.digits import mnist_images, standardised
from immunis.paper import digits
from immunis.paper.measures import Pair
from immunis.paper.rows import initial
from immunis.theory.gram import gram_of


def test_nothing_is_lost_in_the_joint_range(mnist_folder):
    train = mnist_images(True, mnist_folder)
    parts = [digits.digit_task(train, digit).images for digit in (0, 1)]
    grams = [gram_of(torch.from_numpy(standardised(part))) for part in parts]
    basis = digits.joint_basis(*grams)
    assert 40 < basis.shape[1] < 60
    inside = initial(basis.shape[1], 0)
    null = torch.linalg.svd(basis, full_matrices=True)[0][:, basis.shape[1] :]
    outside = torch.cat([basis, null], 1)  # θ on all pixels, whatever it does elsewhere
    whole = outside @ torch.block_diag(inside, initial(null.shape[1], 1))
    small = Pair(*(each.transform(basis) for each in grams)).ratios(inside)
    large = Pair(*grams).ratios(whole)
    assert small["honest"] == pytest.approx(large["honest"], rel=1e-5)
    x = torch.from_numpy(standardised(parts[0]))
    torch.testing.assert_close(digits.coordinates(parts[0], basis) @ basis.T, x, atol=1e-6, rtol=0)


def test_the_binary_protocol_is_balanced_and_its_samples_are_apart(mnist_folder):
    train, test = (mnist_images(part, mnist_folder) for part in (True, False))
    seen = []
    for part in range(3):
        images, labels = digits.against_rest(train, 3, part)
        assert abs(int(labels.sum()) * 2 - len(labels)) <= 9
        seen.append({image.tobytes() for image in images})
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    own, held_out = digits.against_rest(train, 3, 2), digits.against_rest(test, 3)
    few = digits.attacker_samples(own, held_out, torch.eye(784).double(), 20, seed=0)
    assert np.bincount(few.train.labels).tolist() == [10, 10]
    assert len(few.test.labels) == len(held_out[1])


@pytest.mark.parametrize(
    ("text", "says"), [("3-7,37", "'3-7,37': expected pairs"), ("3-10", "as in 3-7")]
)
def test_what_is_no_pair_of_digits_is_refused(text, says):
    with pytest.raises(InputError, match=says):
        digits.read_pairs(text)
