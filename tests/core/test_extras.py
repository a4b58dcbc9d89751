import sys
import tomllib

import pytest

from helpers import ROOT
from immunis import SettingsError
from immunis.core.extras import EXTRAS, need


@pytest.mark.parametrize("library", EXTRAS)
def test_a_missing_library_is_named_with_the_extra_that_installs_it(library, monkeypatch):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = extras["optional-dependencies"][EXTRAS[library]]
    assert any(line.startswith(f"{library}>=") for line in listed)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=rf"^{library} is.*'immunis\[{EXTRAS[library]}\]'"):
        need(library)
