import math

import pytest
import torch

from immunis import Task, gram, immunize, measure
from immunis.theory.definition import definition
from immunis.theory.frontier import ceilings
from immunis.theory.rir import rir

F = torch.float64
EYE = torch.eye(5, dtype=F)


def holds(found):
    return [part["holds"] for part in found.values()]


@pytest.mark.parametrize(
    ("primary", "harmful", "scores", "expected"),
    [
        ((4.0, 4.0), (2.0, 9.0), (0.9, 0.9), [True, True, True]),
        ((4.0, 2.0), (2.0, 1.9), (0.9, 0.9), [False, True, True]),  # RIR = 1.9
        ((4.0, 4.1), (2.0, 9.0), (0.9, 0.9), [True, False, True]),
        ((4.0, 4.0), (2.0, 9.0), (0.9, 0.89), [True, True, False]),
        ((4.0, 4.0), (2.0, 2.0), (0.9, 0.896), [False, True, True]),  # nothing changed
        ((4.0, 4.0), (2.0, math.inf), (None, 0.9), [True, True, None]),
        ((4.0, math.nan), (2.0, math.nan), (0.9, math.nan), [None, None, None]),
    ],
)
def test_each_condition_is_judged_by_its_own_figure(primary, harmful, scores, expected):
    found = definition(rir(primary=primary, harmful=harmful), scores).figures
    assert holds(found) == expected


def test_a_tolerance_says_how_much_of_the_score_is_kept():
    change = rir(primary=(1.0, 1.0), harmful=(1.0, 2.0))
    assert definition(change, (0.9, 0.8), tolerance=0.2).score.holds
    assert not definition(change, (0.9, 0.8), tolerance=0.05).score.holds


def test_the_frontier_meets_the_definition_by_as_much_as_measure_says(pair):
    reach = measure(*pair)
    found = immunize(EYE, *pair, "frontier", goal="definition").record.figures["definition"]
    assert holds(found) == [True, True, True]
    assert found["harmful"]["figure"] == pytest.approx(reach.definition.harmful.figure, rel=1e-6)
    assert found["primary"]["figure"] == pytest.approx(1, rel=1e-9)
    assert holds(reach.record.figures["definition"]) == [True, True, True]


def test_the_definition_compares_with_the_inputs_not_with_the_given_map(pair):
    theta = torch.randn(5, 5, dtype=F, generator=torch.Generator().manual_seed(0))
    figures = immunize(theta, *pair, "r_ill", steps=3).record.figures
    for role in ("primary", "harmful"):
        assert figures["definition"][role]["figure"] == figures["rir_against_inputs"][role]


def test_free_directions_let_every_factor_be_met_even_where_the_inputs_have_used_them(pair):
    (x_p, y_p), (x_h, y_h) = (task.train.tensors() for task in pair)
    tiny = 1e-4 * torch.randn(len(x_h), 1, dtype=F)
    primary = Task((torch.cat([x_p, torch.zeros(len(x_p), 1, dtype=F)], 1), y_p))
    harmful = Task((torch.cat([x_h, tiny], 1), y_h))
    reach = ceilings(gram(primary), gram(harmful))
    assert reach.shared < 1 < reach.rir == math.inf  # κ(K_H) already counts the free direction
    theta = torch.eye(6, dtype=F)
    found = immunize(theta, primary, harmful, "frontier", goal="definition").record.figures
    assert holds(found["definition"]) == [True, True, True]
    assert found["definition"]["harmful"]["figure"] == pytest.approx(10, rel=1e-4)
    assert found["shared_ceiling"] == pytest.approx(reach.shared)


def test_one_harmful_direction_cannot_be_made_harder(pair):
    x, y = pair[1].train.tensors()
    line = Task((x[:, :1] @ torch.ones(1, 5, dtype=F), y), name="line")
    reach = measure(pair[0], line)
    assert reach.ceiling > 1 and reach.definition.harmful.figure == 1
    assert not reach.definition.harmful.holds
