"""Run the code of a released README that says how to load it."""

import re


def code_of(readme):
    section = readme.split("## How to load it")[1]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    return code


def loaded(readme, folder, monkeypatch, **names):
    """Return the model that the code makes, run in the folder."""
    monkeypatch.chdir(folder)
    exec(compile(code_of(readme), "README.md", "exec"), names)
    return names["model"]
