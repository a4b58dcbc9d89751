import pytest

from helpers import RESULTS
from immunis import Record


@pytest.fixture(scope="module")
def demo_record():
    return Record.load(RESULTS / "demo.json")


@pytest.fixture(scope="module")
def audit_record():
    return Record.load(RESULTS / "audit-digit-parity.json")
