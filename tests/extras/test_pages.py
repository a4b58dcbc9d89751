"""Pages whose code needs timm; where it is missing, tests/test_doc_code.py compiles it."""

import pytest

from helpers import doc_code

PAGES = [p for p in doc_code.PAGES if any(b.needs for b in doc_code.blocks(p))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_the_code_of_a_page_runs(path, tmp_path, monkeypatch):
    doc_code.run(path, tmp_path, monkeypatch)
    assert all(b.runs for b in doc_code.blocks(path) if b.needs)
