import re

import pytest

from immunis.report.charts import NARROW, Axis, lines


def test_axes_have_round_ticks():
    assert Axis(1, 1e6, (0, 60), "log").ticks() == [1, 100, 1e4, 1e6]
    assert Axis(2e6, 2e7, (0, 60), "log").ticks() == pytest.approx([2e6, 5e6, 1e7, 2e7])
    assert Axis(4.0, 4.4, (0, 60), "log").ticks() == pytest.approx([4.0, 4.195, 4.4], abs=1e-3)
    assert Axis(0, 1.02, (0, 60)).ticks() == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert len(Axis(0, 1e16, (0, 60)).ticks()) == 6  # absurd, and drawn all the same
    assert Axis(1, 100, (0, 60), "log")(10) == 30
    assert Axis(0, 1, (100, 0))(2) == 0


@pytest.mark.parametrize(
    ("curve", "free"),
    [
        ([(1, 0.3), (100, 0.9)], ("end", 14)),
        ([(1, 0.3), (10, 0.77), (100, 0.95)], ("end", -5)),  # it ends below the threshold's line
        ([(1, 0.3), (5, 0.77), (40, 0.83), (100, 0.95)], ("start", -5)),
    ],
)
def test_the_name_of_a_threshold_stands_where_no_line_passes(curve, free):
    look = {"names": ["a"], "frame": NARROW, "stairs": True, "levels": {"threshold": 0.8}}
    drawn = lines({"a": curve}, "scores", ("steps", ""), **look)
    level = float(re.search(r'level threshold" d="M\S+ ([\d.]+)H', drawn)[1])
    y, anchor = re.search(r'y="([\d.]+)" text-anchor="(\w+)" class="end threshold"', drawn).groups()
    assert (anchor, round(float(y) - level)) == free
