"""What only the owner of a model can say."""

import datetime

import pytest

from immunis import InputError
from immunis.core.errors import SettingsError
from immunis.report.about import About, about_of
from immunis.report.card import render
from immunis.report.evidence import Evidence
from immunis.report.model_card import model_card
from immunis.report.review import review


def test_a_toml_file_is_read_and_what_is_left_out_is_not_stated(tmp_path, audit_record):
    path = tmp_path / "about.toml"
    path.write_text('model = "mine 1.0"\nlicence = "<MIT>"\nthreshold_fixed = 2020-01-02\n')
    about = About.load(path)
    assert about == About("mine 1.0", licence="<MIT>", threshold_fixed="2020-01-02")
    answers = dict(review(about, audit_record, Evidence((audit_record,), about)))
    assert answers["Licence"] == "<MIT>"
    assert answers["Threshold fixed in advance"] == "the default of this program"
    assert answers["Contact"] == answers["Who chose them"] == "not stated"
    assert answers["Attacker's data"] == "60 labelled rows"
    assert answers["Harmful tasks"] == "odd or even (attacker)"
    assert answers["Benign fine-tuning"].startswith("at least five: ")
    assert answers["Final audits"] == "none; development rows only"
    for text in (render(audit_record, about=about), model_card(audit_record, about=about)):
        assert "&lt;MIT>" in text.replace("&gt;", ">") and "mine 1.0" in text
        assert "not stated" in text


def test_a_day_that_the_owner_names_does_not_make_a_threshold_stated_before(audit_record):
    about = About(threshold=0.5, threshold_fixed="2020-01-02")
    answers = dict(review(about, audit_record, Evidence((audit_record,), about)))
    told = answers["Threshold fixed in advance"]
    assert told.startswith("no: the audit was not given it") and told.endswith("on 2020-01-02")


def test_uplift_over_an_open_model_is_told_beside_it(audit_record):
    about = about_of({"open_model": "resnet18", "open_score": 0.9, "known_breaks": ["<b>"]})
    answers = dict(review(about, audit_record, Evidence((audit_record,), about)))
    assert (
        answers["Uplift over an open model"] == "+3.0 points: best attack 93.0%, on resnet18 90.0%"
    )
    assert "<li>&lt;b&gt;</li>" in render(audit_record, about=about)


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("licens = 'x'", SettingsError, "did you mean 'licence'"),
        ("threshold = 'low'", SettingsError, "expected float"),
        ("threshold = nan", SettingsError, "expected a number"),
        ("threshold = 70", SettingsError, "threshold=70: expected a number of at most 1, as 0.7"),
        ("open_score = 93.0", SettingsError, "expected a number of at most 1"),
        ("tolerance = -1.0", SettingsError, "expected a number from 0 to 1"),
        ("threshold_fixed = 'soon'", SettingsError, "YYYY-MM-DD"),
        ("model = ", SettingsError, "is not valid TOML"),
        ("known_breaks = " + "[" * 3000 + "]" * 3000, SettingsError, "nested too deeply"),
        ("contact = " + "{a=" * 3000, SettingsError, "nested too deeply"),
        ("contact" + ".a" * 50_000 + " = 1", SettingsError, "nested too deeply|expected str"),
        ("contact = 1\n" + "a . " * 60 + "a = 1", SettingsError, "nested too deeply"),
        ("threshold = " + "9" * 5000, SettingsError, "is not valid TOML"),
        ("threshold = 0x" + "f" * 400, SettingsError, "expected a number"),
        ("contact = 0x" + "f" * 5000, SettingsError, "over 3,000 digits"),
        ("contact = '" + "x" * (1 << 18) + "'", SettingsError, "has over 262,144 bytes"),
    ],
)
def test_wrong_entries_are_refused(tmp_path, text, error, told):
    path = tmp_path / "about.toml"
    path.write_text(text)
    with pytest.raises(error, match=told):
        About.load(path)
    with pytest.raises(InputError, match="cannot read file about the model"):
        About.load(tmp_path / "none.toml")


def test_days_come_as_dates_too():
    day = datetime.date(2026, 1, 2)
    assert about_of({"threshold_fixed": day}).threshold_fixed == "2026-01-02"


def test_control_characters_are_written_out(tmp_path, audit_record):
    path = tmp_path / "about.toml"
    path.write_text('contact = "a\\u202eb\\u001b[31m\\u0000\\uFFFE"\nknown_breaks = ["\\u2028"]\n')
    for about in (About.load(path), About(contact="a\u202eb\x1b[31m\0\ufffe")):
        for text in (render(audit_record, about=about), model_card(audit_record, about=about)):
            assert not set(text) & set("\u202e\x1b\0\ufffe\u2028") and "a\\" in text
