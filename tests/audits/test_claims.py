"""What a claim needs: runs that differ, not copies."""

from immunis.audits.statistics.bootstrap import Design
from immunis.audits.statistics.claims import factors


def claims(variants, seeds, samples, trainings=None, controls=3, solved=()):
    """Why no claim is made of a defence and of the original."""
    origins = {"o": [0], "d": [0] * variants, "untrained": [0] * controls}
    trainings = {"o": 1, "d": variants if trainings is None else trainings}
    attackers = {"samples": samples, "rows": 80, "of": 100}
    found = factors(Design(origins, seeds, 5), "o", trainings, attackers, solved)
    return found["models"]["d"]["claim"], found["models"]["o"]["claim"]


def test_a_claim_needs_five_different_runs_three_trainings_two_attackers_and_three_controls():
    assert claims(3, 5, 5) == (None, None)
    few = "no claim (fewer than 5 different runs)"
    assert claims(3, 2, 2) == (None, few)  # of the original there are two runs
    assert claims(2, 5, 5)[0] == "no claim (fewer than 3 different trainings)"
    assert claims(5, 1, 1)[0] == "no claim (one sample of the attacker's rows)"
    assert claims(3, 2, 2, controls=1)[0] == "no claim (fewer than 3 untrained controls)"
    told = "no claim (fewer than 5 different runs, fewer than 3 different trainings, one sample"
    assert claims(1, 1, 1)[0] == f"{told} of the attacker's rows)"


def test_copies_do_not_count():
    assert claims(5, 2, 2, trainings=2)[0].startswith("no claim (fewer than 5 different runs")
    assert claims(5, 5, 5, trainings=1)[0] == "no claim (fewer than 3 different trainings)"
    assert claims(3, 5, 1)[0].endswith("one sample of the attacker's rows)")


def test_a_linear_map_that_is_given_once_need_not_vary():
    assert claims(1, 5, 5, solved=["d"])[0] is None
    assert claims(2, 5, 5, solved=["d"])[0] == "no claim (fewer than 3 different trainings)"


def test_what_varied_is_counted_and_nothing_is_claimed_of_the_control():
    design = Design({"o": [0, 1], "d": [0, 1, 0], "untrained": [0, 0]}, 2, 5)
    attackers = {"samples": 2, "rows": 80, "of": 100}
    found = factors(design, "o", {"o": 2, "d": 3}, attackers)
    assert (found["originals"], found["seeds"], found["attackers"]) == (2, 2, attackers)
    assert found["models"]["d"] == {"variants": 3, "runs": 6, "claim": None}
    assert found["models"]["untrained"] == {"variants": 2, "runs": 4, "claim": None}
