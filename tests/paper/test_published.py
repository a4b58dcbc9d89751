"""What the paper printed, and the verdict on what we find."""

import math

import pytest

from immunis.paper.published import compare, judge, printed
from immunis.paper.rows import ROWS


def figures(harmful, primary, rir):
    return {"harmful": harmful, "primary": primary, "rir": rir}


def test_the_published_figures_are_those_of_the_paper():
    one, two = printed("house-prices"), printed("mnist")
    assert one["methods"] == {
        "r_ill": figures([90.02, 3.773], [72.415, 3.545], [1.244, 0.021]),
        "imma": figures([7.053, 1.662], [3.545, 0.880], [2.001, 0.187]),
        "opt_kappa": figures([1.518, 0.027], [0.016, 0.001], [92.58, 4.492]),
        "algorithm_1": figures([18.92, 2.056], [0.053, 0.002], [356.2, 5.491]),
    }
    assert one["epochs"] == {"text": 100, "table": 1000, "released": 10}
    assert two["methods"] == {
        "r_ill": figures([14.832, 1.039], [8.654, 0.606], [1.933, 0.046]),
        "imma": figures([4.522, 0.139], [2.774, 0.094], [1.774, 0.041]),
        "opt_kappa": figures([3.196, 1.225], [0.756, 1.171], [69.73, 54.0]),
        "algorithm_1": figures([6.345, 0.188], [0.149, 0.009], [70.04, 3.28]),
    }
    assert two["successes"] == {"r_ill": 0, "imma": 1, "opt_kappa": 58, "algorithm_1": 90}
    for row in one["methods"].values():  # one pair of tasks: RIR is the ratio, but for averaging
        assert row["harmful"][0] / row["primary"][0] == pytest.approx(row["rir"][0], rel=0.03)
    assert "tab:tabular" in one["table"] and "tab:mnist" in two["table"]
    assert {row.said for row in ROWS.values() if row.said} == set(one["methods"])


PRINTED = figures([20.0, 1.0], [0.2, 0.1], [100.0, 1.0])


@pytest.mark.parametrize(
    ("released", "honest", "verdict", "says"),
    [
        ((20, 0.2, 100), (24, 0.2, 120), "replicates", "holds under released and honest κ"),
        ((50, 0.2, 250), (20, 10, 2), "replicates only with the released κ", "off: (ii), RIR"),
        ((50, 0.2, 250), (900, 9, 100), "replicates only with the released κ", "off: (i), (ii)"),
        ((900, 9, 100), (20, 0.2, 100), "does not replicate", "(i) 45 times, (ii) 45 times, RIR"),
        ((0.4, 0.2, 2), (20, 0.2, 100), "does not replicate", "holds under honest κ"),
        ((0.4, 0.2, 2), (0.6, 0.2, 3), "does not replicate", "holds under neither κ"),
        ((20, 0.2, math.inf), (20, 0.2, math.nan), "does not replicate", "no finite figure"),
    ],
)
def test_a_verdict_weighs_both_factors_and_names_what_is_off(released, honest, verdict, says):
    found = judge(PRINTED, {"released": figures(*released), "honest": figures(*honest)})
    assert found["verdict"] == verdict
    assert says in found["reason"]


def test_failed_runs_count_against_a_row():
    good = {"ratios": {kind: figures(20, 0.2, 100) for kind in ("released", "honest")}}
    bad, other = {"failed": "θ ran away"}, {"failed": "a rank was lost"}
    assert judge(None, {})["verdict"] == compare(None, [(0, bad)])["verdict"] == "–"
    none = compare(PRINTED, [(0, bad), (1, other), (2, bad)])
    assert (none["verdict"], none["reason"]) == ("does not replicate", "θ ran away")
    assert none["failed"] == none["runs"] == 3
    most = compare(PRINTED, [(0, good), (1, good), (2, bad)])
    assert most["verdict"] == "replicates"
    assert most["reason"].endswith("1 of 3 runs failed: θ ran away")
    half = compare(PRINTED, [(0, good), (1, bad)])
    assert half["verdict"] == "does not replicate" and half["failed"] == 1


def test_a_figure_is_a_mean_over_pairs_with_its_deviation_over_seeds():
    def cell(rir):
        return {"ratios": {kind: figures(1, 1, rir) for kind in ("released", "honest")}}

    runs = [(0, cell(1.0)), (0, cell(3.0)), (1, cell(2.0)), (1, cell(6.0))]
    found = compare(None, runs)["honest"]["rir"]
    assert found["values"] == [2.0, 4.0] and found["median"] == 2.5
    assert (found["mean"], found["std"]) == (3.0, pytest.approx(math.sqrt(2)))
    assert math.isnan(compare(None, runs[:2])["honest"]["rir"]["std"])
