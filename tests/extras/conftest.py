"""Small random features: kernel regression on 1024 of them takes seconds."""

import pytest

from immunis.attacks.probes import kernel


@pytest.fixture(autouse=True)
def _few_random_features(monkeypatch):
    monkeypatch.setattr(kernel, "WIDTH", 128)
