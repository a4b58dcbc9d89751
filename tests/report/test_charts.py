import pytest

from immunis.report.card.charts import Axis


def test_axes_have_round_ticks():
    assert Axis(1, 1e6, (0, 60), "log").ticks() == [1, 100, 1e4, 1e6]
    assert Axis(2e6, 2e7, (0, 60), "log").ticks() == pytest.approx([2e6, 5e6, 1e7, 2e7])
    assert Axis(4.0, 4.4, (0, 60), "log").ticks() == pytest.approx([4.0, 4.195, 4.4], abs=1e-3)
    assert Axis(0, 1.02, (0, 60)).ticks() == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert len(Axis(0, 1e16, (0, 60)).ticks()) == 6  # absurd, and drawn all the same
    assert Axis(1, 100, (0, 60), "log")(10) == 30
    assert Axis(0, 1, (100, 0))(2) == 0
