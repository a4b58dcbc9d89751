"""A release is written whole, or not at all."""

import errno
import hashlib
import os

import pytest

from immunis import OutputError
from immunis.core.files import make_folder
from immunis.core.releases import MARK, STAGE, SUMS, release, settle


def test_a_release_may_hold_folders_and_finishes_if_it_was_cut_short(tmp_path):
    release(tmp_path, {"a.txt": "one", "part/b.txt": "two"})
    assert (tmp_path / "part" / "b.txt").read_text() == "two"
    assert (tmp_path / SUMS).read_text().splitlines()[1].endswith("  part/b.txt")
    stage = tmp_path / STAGE / "part"
    stage.mkdir(parents=True)
    (stage / "b.txt").write_text("three")
    (tmp_path / STAGE / MARK).touch()
    (tmp_path / STAGE / SUMS).write_text("of three")
    settle(tmp_path)
    assert (tmp_path / "part" / "b.txt").read_text() == "three"
    assert not (tmp_path / STAGE).exists()


def test_a_release_leaves_all_as_it_was_where_a_file_is_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "part").write_text("mine")
    with pytest.raises(OutputError, match="part is a file; expected a folder"):
        release(tmp_path, {"a.txt": "one", "part/b.txt": "two"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part"]


def test_no_space_at_any_write_leaves_the_old_release(tmp_path, monkeypatch):
    files = {"a.txt": "old a", "b.txt": "old b"}
    release(tmp_path, files)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    real, left = os.fsync, [0]

    def full(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    for point in range(6):  # a file and its folder for each of two files and their checksums
        left[0] = point
        with pytest.raises(OutputError, match="No space left"):
            release(tmp_path, {"a.txt": "new a", "b.txt": "new b"})
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_folder_in_the_place_of_an_output_is_refused_and_nothing_is_staged(tmp_path):
    release(tmp_path, {"a.txt": "old"})
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(OutputError, match=r"b\.txt is a folder; .*move it"):
        release(tmp_path, {"a.txt": "new", "b.txt": "new"})
    assert (tmp_path / "a.txt").read_text() == "old" and not (tmp_path / STAGE).exists()
    (tmp_path / "b.txt").rmdir()
    stage = make_folder(tmp_path / STAGE)  # cut short once all was staged
    for name in ("a.txt", "b.txt", SUMS, MARK):
        (stage / name).write_text("new")
    (tmp_path / "b.txt").mkdir()  # and only then came the folder
    with pytest.raises(OutputError, match=r"b\.txt is a folder; .*move it"):
        settle(tmp_path)
    assert (tmp_path / "a.txt").read_text() == "old"
    (tmp_path / "b.txt").rmdir()
    settle(tmp_path)
    assert (tmp_path / "b.txt").read_text() == "new" and not stage.exists()


@pytest.mark.parametrize("text", ["SHA256 (a) = 0", "0 *a", "notes", "\udc80"])
def test_checksums_of_a_user_are_not_replaced(tmp_path, text):
    (tmp_path / SUMS).write_text(text, errors="surrogateescape")
    with pytest.raises(OutputError, match="SHA256SUMS was not written by immunis: move it"):
        release(tmp_path, {"a.txt": "new"})
    assert [path.name for path in tmp_path.iterdir()] == [SUMS]


def test_a_folder_in_the_place_of_the_checksums_is_refused_before_anything_is_staged(
    tmp_path, monkeypatch
):
    (tmp_path / SUMS).mkdir()
    monkeypatch.setattr("immunis.core.releases.write_bytes", pytest.fail)
    with pytest.raises(OutputError, match="SHA256SUMS is a folder"):
        release(tmp_path, {"a.txt": "new"})


def test_checksums_of_a_folder_cover_all_that_was_released_into_it(tmp_path):
    release(tmp_path, {"a.txt": "one", "b.txt": "two"})
    release(tmp_path, {"b.txt": "three"})
    lines = (tmp_path / SUMS).read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256(text).hexdigest()}  {name}"
        for name, text in (("a.txt", b"one"), ("b.txt", b"three"))
    ]
