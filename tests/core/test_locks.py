"""One writer at a time holds an output folder, and touches its own files alone."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from immunis import OutputError
from immunis.core.files import SCRAP, SCRAPS, UNFINISHED, make_folder, write_bytes
from immunis.core.locks import LOCK, OLD, hold
from immunis.core.releases import STAGE, SUMS, release


@pytest.mark.parametrize(
    "theirs",
    [
        ".lock",
        ".staged/README.md",
        ".staged/SHA256SUMS",
        LOCK,
        STAGE,
        f"{STAGE}/README.md",
        f"{STAGE}/{SUMS}",
    ],
)
def test_a_users_own_files_are_never_touched(tmp_path, theirs):
    (tmp_path / "README.md").write_text("mine")
    path = tmp_path / theirs
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine too")
    with contextlib.suppress(OutputError), hold(tmp_path) as folder:
        release(folder, {"a.txt": "new"})
    assert path.read_text() == "mine too" and (tmp_path / "README.md").read_text() == "mine"
    if theirs.startswith(SCRAP):
        with (
            pytest.raises(OutputError, match=r"was not written by immunis: move it"),
            hold(tmp_path),
        ):
            pass


def test_an_output_folder_may_lie_deep(tmp_path):
    deep = Path(os.path.relpath(tmp_path), *"a" * 1200)
    with hold(deep) as folder:
        release(folder, {"a.txt": "x"})
    assert (deep / "a.txt").read_text() == "x"
    with pytest.raises(OutputError, match="File name too long.*--output"):
        make_folder(Path(deep, *"a" * 2000))
    subprocess.run(["rm", "-r", tmp_path / "a"], check=True)  # too deep for shutil.rmtree


def test_a_link_in_the_place_of_an_output_is_replaced_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "record.json").symlink_to(tmp_path / "elsewhere")
    release(tmp_path / "out", {"record.json": "new"})
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert (tmp_path / "out" / "record.json").read_text() == "new"
    (tmp_path / "out" / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="cannot lock"), hold(tmp_path / "out"):
        pass
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_scraps_of_killed_processes_are_swept_and_other_files_stay(tmp_path, monkeypatch):
    made = []
    old, young = f"{SCRAP}abc_1234{UNFINISHED}", f"{SCRAP}abc_5678{UNFINISHED}"
    mine = [".immunis-notes", f"{SCRAP}diary", f"{SCRAP}my{UNFINISHED}", "mine"]
    names = {old: OLD + 60, young: 0.0, **dict.fromkeys(mine, OLD + 60)}
    for name, age in names.items():
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, times=(time.time() - age,) * 2)
    with hold(tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {young, *mine}
    (tmp_path / "name").mkdir()
    monkeypatch.setattr(os, "replace", lambda name, _: made.append(Path(name).name))
    write_bytes(tmp_path / "name" / "file", b"x")
    assert SCRAPS.fullmatch(made[0]), "what is swept is what is written"


def test_the_lock_leaves_no_folder_behind(tmp_path):
    with hold(tmp_path / "a" / "b"):
        pass
    assert not (tmp_path / "a").exists()
