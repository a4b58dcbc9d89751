"""What long work shows while it runs."""

import io
import re
import sys
import time

import pytest
import torch

from immunis import SettingsError, audit, immunize, measure
from immunis.core import progress
from immunis.core.progress import shown, with_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def prompt(monkeypatch):
    """Lines come at once, so that a test need not work for a second."""
    monkeypatch.setattr(progress, "SOON", 0.0)


def verbs(pair):
    eye, models = torch.eye(5), {"original": torch.eye(5), "other": 2 * torch.eye(5)}
    effort = {"seeds": 1, "budget": 5}
    return {
        "measure": lambda **how: measure(*pair, **how),
        "immunize": lambda **how: immunize(eye, *pair, "condition", steps=5, **how),
        "audit": lambda **how: audit(models, *pair, attacks=["ridge"], effort=effort, **how),
    }


@pytest.mark.parametrize("verb", ["measure", "immunize", "audit"])
class TestVerbs:
    def test_progress_is_shown_unless_it_is_turned_off(self, verb, pair, prompt, capsys):
        verbs(pair)[verb]()
        assert re.search(rf"^{verb}: 100%", capsys.readouterr().err, re.M)
        verbs(pair)[verb](progress=False)
        assert capsys.readouterr().err == ""

    def test_a_function_is_called_instead(self, verb, pair, prompt, capsys):
        said = []
        verbs(pair)[verb](progress=lambda what, share: said.append((what, share)))
        assert said[-1][1] == 1.0 and all(isinstance(what, str) for what, _ in said)
        assert capsys.readouterr().err == ""

    def test_what_is_neither_is_refused(self, verb, pair):
        with pytest.raises(SettingsError, match="progress='yes': expected True, False or a func"):
            verbs(pair)[verb](progress="yes")


def test_a_run_of_an_audit_may_hold_the_function(pair, prompt, capsys):
    said = []
    verbs(pair)["audit"](run={"progress": lambda *done: said.append(done)})
    assert said[-1][1] == 1.0 and capsys.readouterr().err == ""


def test_quick_work_prints_no_line(capsys):
    with shown(True, "quick") as report:
        report("all", 1.0)
    assert capsys.readouterr().err == ""


def test_slow_work_speaks_before_its_first_report(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SOON", 0.01)
    found = ""
    with shown(True, "slow"):
        limit = time.monotonic() + 30
        while not found and time.monotonic() < limit:
            time.sleep(0.01)
            found = capsys.readouterr().err
    assert found == "slow:   0%\n"


def test_lines_come_at_tenths_and_control_characters_are_written_out(prompt, capsys):
    with shown(True, "work") as report:
        time.sleep(0.05)  # lets the first line go
        for step in range(1000):
            report("\x1b[31mstep", (step + 1) / 1000)
    lines = capsys.readouterr().err.splitlines()
    assert 10 <= len(lines) <= 12 and "\x1b" not in "".join(lines)
    assert lines[-1] == r"work: 100% \x1b[31mstep"


def test_a_terminal_gets_a_bar_that_ends_with_the_work(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())

    @with_progress
    def work(*, progress=True):
        progress("half of it", 0.5)
        time.sleep(0.3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert "half of it" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")  # cleared, the cursor shown again
    assert "\x1b[?25h" in terminal.getvalue()


def test_only_the_first_process_of_a_run_shows(monkeypatch, prompt, capsys):
    monkeypatch.setenv("RANK", "1")
    with shown(True, "work") as report:
        report("all", 1.0)
    assert capsys.readouterr().err == ""
