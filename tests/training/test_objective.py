"""Objectives."""

import pytest

from immunis import SettingsError
from immunis.training.objective import Objective


def test_recall_and_a_head_that_reads_classes_are_refused_together():
    with pytest.raises(SettingsError, match="recall and head exclude each other"):
        Objective(lambda view: {}, recall=True, head=True)
