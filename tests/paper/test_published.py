"""What the paper printed, and the verdict on what we find."""

import math

import pytest

from immunis.paper.published import compare, holds, printed, replicates
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


def spread(*values):
    """Figures by factor; the second of a pair is what a second training makes of it."""
    ends = [value if isinstance(value, tuple) else (value, value) for value in values]
    return figures(*({"mean": m, "again": again, "values": [m]} for m, again in ends))


@pytest.mark.parametrize(
    ("found", "verdict", "says"),
    [
        ((20, 0.2, 100), "yes", "(i) the same, (ii) the same, RIR the same"),
        ((50, 0.2, 250), "yes", "(i) 2.5 times"),
        ((900, 9, 100), "no", "(i) 45 times, (ii) 45 times, RIR the same"),
        ((0.4, 0.2, 2), "no", "(i) 1/50"),
        ((20, 0.2, (100, 1e9)), "not stable", "RIR the same"),
        ((900, 0.2, (100, 1e9)), "no", "(i) 45 times"),
        ((20, 0.2, math.inf), "no", "no finite figure"),
    ],
)
def test_a_row_replicates_if_both_factors_and_rir_do_with_the_released_kappa(found, verdict, says):
    got, why = replicates(PRINTED, {"released": spread(*found)})
    assert got == verdict and says in why


@pytest.mark.parametrize(
    ("said", "rir", "verdict"),
    [
        (100.0, 12, "yes"),
        (100.0, 2, "no"),
        (2.0, 3, "yes"),
        (2.0, 30, "no"),
        (100.0, (9, 11), "not stable"),
        (100.0, math.nan, "no"),
    ],
)
def test_a_conclusion_holds_with_kappa_as_the_paper_defines_it(said, rir, verdict):
    row = figures([20.0, 1.0], [0.2, 0.1], [said, 1.0])
    got, why = holds(row, {"honest": spread(1, 1, rir)})
    assert got == verdict
    assert ("“RIR ≫ 1”" if said >= 10 else "“RIR not ≫ 1”") in why


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([2, 11, 84, 27, 5], "in 3 of 5 seeds"), ([11, 12], "yes"), ([1, 2], "no")],
)
def test_one_large_seed_does_not_make_a_conclusion_hold(values, verdict):
    rir = {"mean": sum(values), "again": sum(values), "values": values}
    if verdict == "no":
        rir |= {"mean": 1.5, "again": 1.5}
    assert holds({"rir": [100.0, 1.0]}, {"honest": {"rir": rir}})[0] == verdict


def cell(rir, draws=(), rerun=None):
    factors = figures(1.0, 1.0, rir)
    ratios = {"released": factors, "honest": factors, "rounding": figures(*[[rir, *draws]] * 3)}
    found = {"ratios": ratios}
    return found if rerun is None else {**found, "rerun": {"released": rerun, "honest": rerun}}


def test_failed_runs_count_against_a_row_and_small_runs_say_nothing():
    good = cell(100.0)
    bad, other = {"failed": "θ ran away"}, {"failed": "a rank was lost"}
    assert compare(None, [(0, bad)])["replicates"] == "–"
    none = compare(PRINTED, [(0, bad), (1, other), (2, bad)])
    assert (none["replicates"], none["holds"]) == ("no", "–")
    assert none["reason"] == "3 of 3 runs failed: θ ran away"
    assert none["failed"] == none["runs"] == 3
    most = compare(PRINTED, [(0, good), (1, good), (2, bad)])
    assert most["holds"] == "yes" and "1 of 3 runs failed: θ ran away" in most["reason"]
    small = compare(PRINTED, [(0, good)], tested=False)
    assert small["replicates"] == small["holds"] == "not tested at the paper's setting"


def test_a_figure_is_a_mean_over_pairs_with_its_deviation_over_seeds():
    runs = [(0, cell(1.0)), (0, cell(3.0)), (1, cell(2.0)), (1, cell(6.0))]
    found = compare(None, runs)["honest"]["rir"]
    assert found["values"] == [2.0, 4.0] and found["median"] == 2.5
    assert (found["mean"], found["std"]) == (3.0, pytest.approx(math.sqrt(2)))
    assert math.isnan(compare(None, runs[:2])["honest"]["rir"]["std"])


def test_the_range_of_a_figure_is_what_rounding_makes_of_its_mean():
    runs = [(0, cell(1.0, [1.0, 9.0])), (1, cell(3.0, [3.0, 1.0]))]
    found = compare(None, runs)
    assert [found["released"]["rir"][end] for end in ("low", "high")] == [2.0, 5.0]
    assert [found["honest"]["rir"][end] for end in ("low", "high", "again")] == [2.0] * 3
    again = [(0, cell(1.0, rerun=figures(1.0, 1.0, 3.0))), (1, cell(3.0))]
    assert compare(None, again)["honest"]["rir"]["again"] == 6.0  # three times the mean


def test_rows_count_the_runs_that_meet_definition_31_and_that_rounding_moves():
    runs = [(0, cell(4.0, [4.1])), (0, cell(2.0, [3.1])), (1, cell(5.0, [5.0]))]
    for (_, run), (harmful, primary) in zip(runs, [(8, 2), (1.5, 0.75), (1, 0.2)], strict=True):
        run["ratios"]["honest"] = figures(harmful, primary, harmful / primary)
    found = compare(None, [*runs, (1, {"failed": "θ ran away"})])
    assert found["definition"] == {"harmful": 2, "primary": 2}
    assert found["moved"] == 1
