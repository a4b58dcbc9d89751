"""Run the code of a page: its blocks in sequence, in one namespace and an empty folder.

What is run, by the language of the fence: ``python`` (as doctest where it has prompts),
``console`` (``$ immunis ...`` and ``$ python FILE``). A block with a ``title`` is written to
that file first. ``<!-- not run: WHY -->`` before a fence leaves it unrun, and so does
``<!-- needs: PACKAGE -->`` where that is missing; the block is then compiled, or parsed.
"""

import doctest
import importlib.util
import re
import runpy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.testing import CliRunner

import immunis.cli.commands  # noqa: F401 - registers them
from helpers import ROOT
from immunis.cli.options import app
from immunis.recipes import load_recipe

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "toml", "math", "text"}
FENCE = re.compile(
    r"(?:<!-- (?P<mark>not run|needs): (?P<why>[^\n]+?) -->\n)?"
    r'^```(?P<language>[^\s`]*)(?: title="(?P<title>[\w.-]+)")?\n(?P<code>.*?)^```$',
    re.M | re.S,
)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@dataclass(frozen=True)
class Block:
    """A fenced block and what stands before it."""

    language: str
    code: str
    title: str | None
    skipped: str | None
    needs: str | None
    line: int

    @property
    def runs(self) -> bool:
        """Whether it is run here."""
        missing = self.needs is not None and importlib.util.find_spec(self.needs) is None
        return self.skipped is None and not missing


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page; fails on a fence that the pattern does not see."""
    text = path.read_text(encoding="utf-8")
    found = [
        Block(
            m["language"],
            m["code"],
            m["title"],
            m["why"] if m["mark"] == "not run" else None,
            m["why"] if m["mark"] == "needs" else None,
            text.count("\n", 0, m.start("code")),
        )
        for m in FENCE.finditer(text)
    ]
    assert 2 * len(found) == len(re.findall(r"^\s*```", text, re.M)), f"{path}: odd fences"
    assert not {b.language for b in found} - LANGUAGES, f"{path}: unknown languages"
    return found


def commands(block: Block) -> list[list[str]]:
    """The commands of a console block as words, without prompts and comments."""
    lines = [line for line in block.code.splitlines() if line]
    assert all(line.startswith("$ ") for line in lines), f"a line without $: {lines}"
    return [shlex.split(line[2:], comments=True) for line in lines]


def check(block: Block, page: str) -> None:
    """What can be said of a block that is not run: it compiles, its options exist."""
    if block.language == "python":
        compile(block.code, f"{page}:{block.line}", "exec")
    if block.language != "console":
        return
    for words in commands(block):
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), words
        if words[0] == "torchrun":
            words = ["immunis", *words[words.index("immunis") + 1 :]]
        if words[0] == "immunis":
            parsed(words[1:])


def parsed(words: list[str]) -> None:
    """Parse a command line as immunis would, and do nothing."""
    known = typer.main.get_command(app).commands
    assert words[0] in known, f"immunis {words[0]}: no such command"
    known[words[0]].make_context(words[0], words[1:]).close()


def run(path: Path, folder: Path, monkeypatch) -> None:
    """Run a page in a folder; raises where a block fails."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    names: dict = {"__name__": "page"}
    for block in blocks(path):
        where = f"{path.name}:{block.line}"
        if block.title:
            (folder / block.title).write_text(block.code, encoding="utf-8")
        if not block.runs:
            check(block, where)
        elif block.language == "toml":
            load_recipe(folder / (block.title or "untitled"))
        elif block.language == "console":
            for words in commands(block):
                if words[0] == "python":
                    runpy.run_path(str(folder / words[1]), run_name="__main__")
                    continue
                assert words[0] == "immunis", f"{where}: {words[0]} needs a mark: not run"
                done = CliRunner().invoke(app, words[1:])
                assert done.exit_code == 0, f"{where}: {words}\n{done.output}{done.exception}"
        elif block.language == "python" and ">>>" in block.code:
            test = doctest.DocTestParser().get_doctest(block.code, names, where, str(path), 0)
            runner = doctest.DocTestRunner(optionflags=OPTIONS)
            runner.run(test, clear_globs=False)
            names.update(test.globs)
            assert not runner.failures, where
        elif block.language == "python" and not block.title:
            exec(compile(block.code, where, "exec"), names)
    for title in (b.title for b in blocks(path) if b.title and b.title.endswith(".py")):
        sys.modules.pop(Path(title).stem, None)
