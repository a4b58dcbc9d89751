import pytest

from immunis.report.format import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "undefined"),
        (-float("inf"), "−∞"),
        (0.0, "0"),
        (1234.4, "1234"),
        (1e-7, "1.0e-7"),
        (True, "True"),
        (1_000_000, "1,000,000"),
        (9999.9, "1.0e4"),
        (999.7, "1000"),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert number(value) == text
