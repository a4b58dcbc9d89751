"""Files are written whole, or the reason is said."""

import errno
import os

import pytest

from immunis import OutputError
from immunis.core.files import make_folder, write_text
from immunis.core.releases import release


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_is_closed_to_writing_is_said(tmp_path, monkeypatch, code):
    def closed(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("immunis.core.files.tempfile.mkstemp", closed)
    monkeypatch.setattr("immunis.core.files.tempfile.TemporaryFile", closed)
    for attempt in (make_folder, lambda path: release(path, {"a": "x"})):
        with pytest.raises(OutputError, match="cannot write to output folder .* --output"):
            attempt(tmp_path)
    with pytest.raises(OutputError, match=os.strerror(code)):
        write_text(tmp_path / "a", "x")
    assert not list(tmp_path.iterdir())
