import dataclasses

import pytest
import torch
import yaml

from helpers import RESULTS
from immunis import InputError, Record, immunize, measure
from immunis.report.card import render
from immunis.report.model_card import model_card
from immunis.report.ratios import ratio


def metadata(text):
    _, head, _ = text.split("---\n", 2)
    return yaml.safe_load(head)


@pytest.fixture
def audited():
    record = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    record.figures["models"]["opt_kappa"]["broken"] = True
    record.settings["not_run"] = {"lora": "low-rank adapters"}  # records of 0.1 lack it
    return record


def test_the_model_card_of_an_audit_holds_its_facts(audited):
    audited = audited.with_settings(not_run={"lora": "low-rank fine-tuning"})
    text = model_card(audited)
    head = metadata(text)
    assert head["tags"] == ["immunis", "model-immunization"]
    assert head["library_name"] == "timm"
    assert "license" not in head and "# license" in text
    index = {entry["name"]: entry["results"] for entry in head["model-index"]}
    assert "original" not in index
    primary, attack = index["condition"]
    assert primary["metrics"][0] == {"type": "accuracy", "value": 0.4571, "name": "primary task"}
    assert primary["task"] == {"type": "image-classification"}
    assert attack["metrics"][0]["value"] == 0.1447
    assert "earlier_layer, the highest score of 14 attacks" in attack["metrics"][0]["name"]
    assert len(index["opt_kappa"]) == 1  # a broken model is credited with no protection
    for said in (
        "3,256 labelled samples",
        "| earlier_layer |",
        "breaks condition",
        "Not run: lora",
    ):
        assert said in text
    assert audited.digest()[:16] in text and audited.data["attacker"]["train"] in text


def test_what_training_said_of_itself_is_told(pair):
    record = Record.load(RESULTS / "audit-tiny-imagenet-cars-vit-recall.json")
    told = "3 of 3 trainings of probe-recall report: no evaluation kept"
    assert told in model_card(record) and told in render(record)
    record.figures["training"]["probe-recall"][0] = None  # lost
    assert told.replace("3 of", "2 of") in model_card(record)
    done = immunize(torch.eye(5), *pair, "erase").record
    done.figures["details"]["notes"] = ["few rows"]
    assert "The training reports: few rows" in model_card(done)


def test_ranks_are_shown_and_that_they_changed_is_said(pair):
    done = immunize(torch.eye(5), *pair, "erase").record
    assert "| rank | 5 of 5 | 5 of 5 |" in model_card(done)
    assert "not defined" not in model_card(done)
    done.figures["spectra"]["primary"]["after"]["rank"] = 1
    said = "the rank of the primary features went from 5 to 1: condition numbers"
    assert said in model_card(done) and said in ratio(done) and said in render(done)
    assert "| rank | 5 of 5 | 1 of 5 |" in model_card(done)


def test_a_card_without_a_recipe_names_none_and_its_library_where_told(pair):
    done = immunize(torch.eye(5), *pair, "erase").record
    assert "By `immunis.immunize` in Python, with" in model_card(done)
    assert metadata(model_card(done))["library_name"] == "pytorch"
    assert metadata(model_card(done, library="timm"))["library_name"] == "timm"


def test_the_hub_reads_the_metadata(audited):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(model_card(audited))
    assert {result.metric_type for result in card.data.eval_results} == {"accuracy"}


def test_an_immunization_and_its_audit_make_one_card(pair, audited):
    done = immunize(torch.eye(5), *pair, "erase").record
    text = model_card(done, audited)
    assert "No attacker has been run" in text.split("# tiny_imagenet")[0]
    assert text.index("RIR* =") < text.index("of the original model's help")
    assert len(metadata(text)["model-index"]) == 1 + 5
    assert "| 0 |" in text  # by class


def test_scores_on_training_data_are_no_metrics(pair):
    done = immunize(torch.eye(5), *pair, "erase").record
    figures = {**done.figures, "primary_score": {**done.figures["primary_score"], "split": "train"}}
    assert metadata(model_card(dataclasses.replace(done, figures=figures)))["model-index"] == []


def test_names_cannot_leave_their_place(pair):
    evil = 'x"]\n---\nlicense: evil\n| a | ``` <script> [b](javascript:c)'
    done = dataclasses.replace(immunize(torch.eye(5), *pair, "erase").record, name=evil)
    done = done.with_settings(recipe={"a": "```\n<script>"})
    text = model_card(done)
    assert metadata(text)["model-index"][0]["name"] == evil
    assert "license" not in metadata(text)
    body = text.split("\n---\n")[1]
    assert "\nlicense" not in body and "[b](" not in body.replace("\\[b](", "")
    assert "<script>" not in body.split("```json")[0]
    assert body.count("```") == 2


def test_other_records_have_no_model_card(pair):
    with pytest.raises(InputError, match="has no model card"):
        model_card(measure(*pair).record)
    with pytest.raises(InputError, match="at least one"):
        model_card()
    broken = immunize(torch.eye(5), *pair, "erase").record
    with pytest.raises(InputError, match="figures\\.\\S+ is missing; expected"):
        model_card(dataclasses.replace(broken, figures={}))
