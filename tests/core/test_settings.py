"""Counts that cost time or memory have bounds."""

import pytest

from immunis import Effort, SettingsError
from immunis.core.jobs import Run
from immunis.data.sources import images
from immunis.methods import get_method, imma
from immunis.training.settings import Training


def test_the_same_bounds_hold_in_python():
    with pytest.raises(SettingsError, match="seeds=2000000000: expected at most 1,000"):
        Effort(seeds=2_000_000_000)
    with pytest.raises(SettingsError, match="steps=1000000000000000: expected at most 100,000,000"):
        Training(steps=10**15)
    with pytest.raises(SettingsError, match="size=100000: expected at most 4,096"):
        images("a", "b", size=100_000)
    with pytest.raises(SettingsError, match="workers=1000000: expected at most 1,000"):
        Run(workers=10**6)
    for settings, name in ((imma.Settings, "inner_steps"), (imma.NetworkSettings, "steps")):
        with pytest.raises(SettingsError, match=f"{name}=1001: expected at most 1,000"):
            settings(**{name: 1001})


def test_a_budget_that_is_a_factor_is_no_count():
    assert get_method("frontier").configure({"budget": 1e12}).budget == 1e12
    with pytest.raises(SettingsError, match="budget=10000001: expected at most 10,000,000"):
        Effort(budget=10**7 + 1)
