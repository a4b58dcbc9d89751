"""Every code block of the README and the docs runs, or says why it does not."""

import copy
import subprocess
import sys

import pytest

from helpers import doc_code, short
from immunis import ImmunisError
from immunis.attacks import ATTACKS, Budget
from immunis.methods import METHODS


@pytest.mark.parametrize("path", doc_code.PAGES, ids=lambda p: str(p.relative_to(doc_code.ROOT)))
@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_the_code_of_a_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.setattr(Budget, "changed", short.changed)
    registries = [(each, copy.copy(each)) for each in (ATTACKS, METHODS)]
    try:
        doc_code.run(path, tmp_path, monkeypatch)
    finally:
        for registry, before in registries:
            registry.clear()
            registry.update(before)


@pytest.mark.parametrize("name", ["add-a-method", "add-an-attack"])
def test_what_is_added_takes_fewer_than_forty_lines(name):
    page = doc_code.ROOT / "docs" / f"{name}.md"
    (code,) = (b.code for b in doc_code.blocks(page) if (b.title or "").endswith(".py"))
    assert code.count("\n") < 40


@pytest.mark.parametrize("name", ["add-a-method", "add-an-attack"])
@pytest.mark.parametrize("command", [["check", "--no-cache"], ["format", "--check", "--no-cache"]])
def test_what_is_added_passes_the_linter(name, command, tmp_path):
    page = doc_code.ROOT / "docs" / f"{name}.md"
    (block,) = (b for b in doc_code.blocks(page) if (b.title or "").endswith(".py"))
    (tmp_path / block.title).write_text(block.code, encoding="utf-8")
    config = "--config", str(doc_code.ROOT / "pyproject.toml")
    ruff = [sys.executable, "-m", "ruff", *command, *config, str(tmp_path)]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", ["immunis audit x --no-such", "immunis adit x", "immunis immunize x --devices two"]
)
def test_a_command_that_cannot_be_parsed_is_noticed(command):
    block = doc_code.Block("console", f"$ {command}\n", None, "why", None, 1)
    with pytest.raises(Exception, match="(?i)no such|integer"):
        doc_code.check(block, "page")


@pytest.mark.parametrize(
    "block",
    [
        "```python\n>>> 1 + 1\n3\n\n```\n",
        "```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n",
        "```console\n$ immunis list nothing\n```\n",
        "```console\n$ make demo\n```\n",
        '```toml title="a.toml"\nnaem = "a"\n```\n',
        "<!-- not run: why -->\n```python\n1 +\n```\n",
        "```\nsome code\n```\n",
    ],
)
def test_a_block_that_fails_is_noticed(block, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises((AssertionError, ImmunisError, SyntaxError)):
        doc_code.run(page, tmp_path, monkeypatch)


def test_blocks_know_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: slow -->\n```console\n$ make demo\n```\n"
        '<!-- needs: nothing_of_the_kind -->\n```python title="a.py"\nx = 1\n```\n'
    )
    first, second = doc_code.blocks(page)
    assert (first.skipped, first.runs) == ("slow", False)
    assert (second.needs, second.title, second.runs) == ("nothing_of_the_kind", "a.py", False)
