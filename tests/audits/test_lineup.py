"""Which models are attacked, and which original each was made from."""

import pytest
import torch

from immunis import InputError
from immunis.audits.lineup import Variant, lineup
from immunis.core.hashing import state_digest
from immunis.core.shapes import CONTROL


def made(models, seeds=2):
    return lineup(models, "original", seeds, torch.zeros(2, 5), 3, None, "cpu")


def theta(scale=1.0):
    return scale * torch.eye(5)


def test_every_variant_meets_every_seed_and_the_control_is_drawn_for_each():
    found = made({"original": theta(), "several": [theta(2), theta(3), theta(4)]})
    runs = [(name, variant, seed) for name, _, variant, seed in found.runs()]
    assert runs == [
        *[("original", 0, seed) for seed in (0, 1)],
        *[("several", variant, seed) for variant in (0, 1, 2) for seed in (0, 1)],
        *[(CONTROL, place, seed) for seed in (0, 1) for place in (0, 1)],
    ]
    assert found.design.origins == {"original": [0], "several": [0, 0, 0], CONTROL: [0, 0]}


@pytest.mark.parametrize(("seeds", "draws"), [(1, 3), (2, 2), (3, 1), (7, 1)])
def test_there_are_three_different_controls_or_more_whatever_the_seeds(seeds, draws):
    found = made({"original": theta()}, seeds)
    assert [len(of) for of in found.fresh] == [draws] * seeds
    weights = {state_digest(each.model) for of in found.fresh for each in of}
    assert len(weights) == draws * seeds >= 3
    assert found.design.parts == (0 if seeds == 1 else 5)


def test_variants_of_several_originals_are_paired_in_order_or_as_they_say():
    originals = [theta(), theta(2)]
    told = [Variant(theta(3), 1), Variant(theta(4), 0), Variant(theta(5), 1)]
    found = made({"original": originals, "d": [theta(), theta()], "told": told})
    assert found.design.origins["original"] == [0, 1]
    assert found.design.origins["d"] == [0, 1]
    assert found.design.origins["told"] == [1, 0, 1]
    assert (found.design.levels("told"), found.design.levels("original")) == (2, 2)
    assert found.design.levels(CONTROL) == 2


@pytest.mark.parametrize(
    "variants",
    [
        [],
        theta(),  # of which of the two?
        [theta()] * 3,
        [Variant(theta(), 0)] * 2,  # none of the second
        [Variant(theta(), 0), Variant(theta(), 2)],
        [Variant(theta(), 0), Variant(theta(), 1), theta()],
    ],
)
def test_variants_of_unknown_originals_are_refused(variants):
    with pytest.raises(InputError, match=r"d: (\d models for 2 originals|no model came)"):
        made({"original": [theta(), theta(2)], "d": variants})
