"""How often a benchmark's final rows were opened."""

import json
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from immunis import InputError, OutputError
from immunis.audits.ledger import MOST, enter, ledger
from immunis.data.checks import hash_rows


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("IMMUNIS_LEDGER", str(tmp_path / "made" / "ledger.jsonl"))
    return tmp_path / "made" / "ledger.jsonl"


def test_each_final_audit_of_a_benchmark_counts_once(path):
    assert enter("a", "flowers", [], {"name": "first"}) == 1
    assert enter("b", "flowers", [], {}) == 2
    assert enter("a", "flowers", [], {}) == 2  # continued, not run again
    assert enter("a", "cars", [], {}) == 1
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["key"] for line in lines] == ["a", "b", "a"]
    assert lines[0]["name"] == "first" and lines[0]["benchmark"] == "flowers"


def test_audits_that_share_rows_count_however_the_benchmark_was_cut(path):
    rows = list(hash_rows(torch.randn(400, 3)))
    other = list(hash_rows(torch.randn(400, 3)))
    assert enter("a", "whole", rows, {}) == 1
    assert enter("b", "a row less", rows[1:], {}) == 2
    assert enter("c", "split anew", [*rows[:20], *other], {}) == 3
    assert enter("d", "others", other[:200], {}) == 2  # those of c, and this one
    assert enter("e", "nothing shared", hash_rows(torch.randn(400, 3)), {}) == 1
    many = list(hash_rows(torch.arange(3 * MOST)[:, None]))
    assert enter("f", "many", many, {}) == 1 and enter("g", "many less one", many[1:], {}) == 2
    assert len(path.read_text().splitlines()[-1]) < 20 * MOST


def test_a_line_without_rows_counts_by_its_benchmark(path):
    path.parent.mkdir()
    path.write_text('{"key": "a", "benchmark": "flowers"}\n')
    assert enter("b", "flowers", [1 << 100], {}) == 2


def _enter(number):
    return enter(str(number), "flowers", [], {})


def test_processes_that_enter_at_once_lose_no_line(path):
    with ProcessPoolExecutor(4) as pool:
        found = sorted(pool.map(_enter, range(12)))
    assert found == list(range(1, 13))
    assert len(path.read_text().splitlines()) == 12


def test_a_ledger_that_cannot_be_written_is_said_with_what_to_do(path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMMUNIS_LEDGER", str(tmp_path / "file" / "ledger.jsonl"))
    with pytest.raises(OutputError, match="must be counted: set IMMUNIS_LEDGER"):
        enter("a", "flowers", [], {})


@pytest.mark.parametrize(
    "text",
    [
        "no json\n",
        "[]\n",
        '{"key": "a", "benchmark": "b", "rows": 3}\n',
        '{"key": "a"}\n',
        "3\n",
        '{"key": "a',
    ],
)
def test_a_damaged_ledger_is_refused_and_left_as_it_is(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError, match="line 1 is no entry"):
        enter("a", "flowers", [], {})
    assert path.read_text() == text


def test_the_ledger_lies_in_the_user_s_home_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("IMMUNIS_LEDGER")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ledger() == tmp_path / ".local/share/immunis/final-audits.jsonl"
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(InputError, match="Set IMMUNIS_LEDGER"):
        ledger()
