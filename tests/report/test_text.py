from helpers import RESULTS
from immunis import Record
from immunis.report.text import not_tested, verdict


def test_the_verdict_names_the_highest_score_and_the_interval_too(audit_record):
    case = audit_record.figures["worst_case"]["frontier"]
    said = verdict(audit_record, "frontier")
    assert case["highest_attack"] != case["attack"]
    most = f"{case['highest_accuracy']:.1%} ({case['highest_attack']})"
    assert f"the highest score of any attack is {most}" in said
    low, high = (case["interval"][end] for end in ("low", "high"))
    assert f"interval {low:.0%} to {high:.0%}" in said


def test_the_verdict_says_where_the_original_hardly_helps_anybody():
    record = Record.load(RESULTS / "audit-mnist-digits.json")
    said = verdict(record, "probe-deep")
    assert "keeps 0% of the original model's help; the original helps only 2 of these" in said
    other = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    assert "by a point" not in verdict(other, "condition")


def test_what_an_attack_breaks_is_listed(audit_record):
    lines = not_tested(audit_record)
    assert any("breaks erase" in line and "finetune_last keeps 204%" in line for line in lines)
    assert any("do not apply: batchnorm_only, renormalise" in line for line in lines)
