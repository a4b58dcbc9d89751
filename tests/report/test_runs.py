"""Records below a folder, and the local page that lists them."""

import http.client
import os
import shutil
import threading
from pathlib import Path

import pytest

from helpers import RESULTS
from immunis import InputError, immunize
from immunis.report.card import KINDS, write_card
from immunis.report.runs import collected, found_records
from immunis.report.view import HOST, page, server


@pytest.fixture
def runs(tmp_path):
    """A folder of two runs, a damaged one and a hidden one, beside a secret."""
    folder = tmp_path / "runs"
    for name, source in (("audit", "audit-digit-parity"), ("demo", "demo")):
        (folder / name).mkdir(parents=True)
        shutil.copy(RESULTS / f"{source}.json", folder / name / "record.json")
    for name in ("torn", ".staged"):
        (folder / name).mkdir()
        (folder / name / "record.json").write_text("{")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


def test_a_folder_gives_the_records_of_one_card(runs, tmp_path, audit_record, demo_record):
    assert collected([runs], KINDS) == [audit_record]
    assert collected([runs / "demo"], KINDS) == [demo_record]
    assert collected([runs / "audit" / "record.json"], KINDS) == [audit_record]
    shutil.copytree(runs / "audit", runs / "copy")
    assert collected([runs], KINDS) == [audit_record]  # once
    found = {path.parent.name: record for path, record in found_records(runs)}
    assert set(found) == {"audit", "copy", "demo", "torn"} and isinstance(found["torn"], str)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no record with a card"):
        collected([tmp_path / "empty"], KINDS)
    with pytest.raises(InputError):
        collected([runs / "torn" / "record.json"], KINDS)


def test_a_card_is_written_of_results_and_of_records(pair, tmp_path, audit_record):
    import torch

    result = immunize(torch.eye(5), *pair, "erase")
    text = write_card(tmp_path / "card.html", result).read_text(encoding="utf-8")
    assert "Not audited" in text
    text = write_card(tmp_path / "README.md", result, audit_record, about={"licence": "mine"})
    assert "- Licence: mine" in text.read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"a dict came; expected records, or results of audit"):
        write_card(tmp_path / "card.html", {})


def test_the_page_lists_runs_and_shows_cards_by_number_alone(runs):
    listed = page(runs, "/")
    assert listed.count("/card/") == 2 and "not readable" in listed and "Partly" in listed
    cards = [page(runs, f"/card/{number}") for number in range(3)]
    assert sum(card is not None for card in cards) == 2 and cards[2] is None
    for path in (
        "/card/../../secret.txt", "/../secret.txt", "/card/%2e%2e/secret.txt", "/secret.txt",
        "/card/-1", "/card/9", "/card/1/", "/card/1e9", "/card/²", "", "//", "/card/" + "9" * 5000,
        "/audit/record.json", "/?a=/etc/passwd",
    ):  # fmt: skip
        assert page(runs, path) is None, path


def test_a_refused_model_is_listed_as_refused(runs, pair):
    import torch

    record = immunize(torch.eye(5), *pair, "erase").record
    record.figures["primary_score"] |= {"before": 0.9, "after": 0.2, "kept": False}
    (runs / "broken").mkdir()
    record.save(runs / "broken" / "record.json")
    assert '<span class="state refused">Refused</span>' in page(runs, "/")


def test_a_card_of_one_run_has_what_other_audits_of_the_same_models_found(runs):
    for name in ("held", "tuning"):
        source = RESULTS / f"audit-tiny-imagenet-cars-resnet18-{name}.json"
        (runs / name).mkdir()
        shutil.copy(source, runs / name / "record.json")
    shutil.copytree(runs / "held", runs / "copy")
    listed = page(runs, "/")
    assert listed.count("Partly") == 2 and "19.2% by reinit_last" in listed  # and another model
    assert all(f"<small>{name}/record.json" in listed for name in ("held", "tuning", "copy"))
    (number,) = [n for n in range(4) if "probe-held" in (page(runs, f"/card/{n}") or "")]
    assert "19.2%</b><small>defended" in page(runs, f"/card/{number}")


def test_what_the_owner_says_beside_a_record_is_on_its_card(runs):
    (runs / "audit" / "about.toml").write_text('model = "mine 1.0"\nthreshold = 0.99\n')
    assert "mine 1.0</a>" in page(runs, "/") and "No verdict" in page(runs, "/")
    cards = [card for n in range(3) if (card := page(runs, f"/card/{n}"))]
    assert sum("mine 1.0" in card for card in cards) == 1
    (runs / "audit" / "about.toml").write_text("threshold = 70")
    assert "expected a number of at most 1" in page(runs, "/")
    assert sum(page(runs, f"/card/{n}") is not None for n in range(3)) == 1  # the demo


def test_the_server_answers_this_machine_by_its_name_only(runs):
    with server(runs, 0) as served:
        assert served.server_address[0] == HOST == "127.0.0.1"
        threading.Thread(target=served.serve_forever, daemon=True).start()

        def get(path, host=None, method="GET"):
            port = served.server_port
            connection = http.client.HTTPConnection(HOST, port, timeout=60)
            connection.request(method, path, headers={"Host": host or f"localhost:{port}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

        status, text, heads = get("/")
        assert status == 200 and "/card/" in text
        assert "default-src 'none'" in heads["Content-Security-Policy"]
        assert get("/card/0")[0] == 200
        assert get("/../secret.txt")[0] == 404 and get("/card/9")[0] == 404
        assert get("/", host="evil.example:80")[0] == 403
        assert get("/", method="POST")[0] == 501
        served.shutdown()


def test_hostile_names_stay_text_in_the_list(runs, audit_record):
    import dataclasses

    record = dataclasses.replace(audit_record, name="<script>alert(1)</script>")
    record.save(runs / "audit" / "record.json")
    text = page(runs, "/")
    assert "<script" not in text and "&lt;script&gt;" in text


def test_folders_whose_names_are_not_utf_8_or_turn_text_around_are_listed(runs, audit_record):
    for name in (b"bad\xff\x1b[31m", "turned\u202e".encode()):
        folder = Path(os.fsdecode(os.path.join(os.fsencode(runs), name)))
        folder.mkdir()
        audit_record.save(folder / "record.json")
        shutil.copytree(runs / "torn", folder / "torn")
    text = page(runs, "/")
    assert text.encode() and "bad" in text and "turned" in text
    assert not set(text) & set("\x1b\u202e")


def test_pipes_devices_and_links_among_records_are_passed_over(no_hang, runs, audit_record):
    os.mkfifo(runs / "record.json")
    (runs / "torn" / "record.json").unlink()
    (runs / "torn" / "record.json").symlink_to("/dev/zero")
    (runs / "loop").symlink_to(runs)
    (runs / "huge").mkdir()
    with open(runs / "huge" / "record.json", "wb") as file:
        file.truncate(1 << 40)  # of zeros that take no room
    assert collected([runs], KINDS) == [audit_record]
    assert page(runs, "/").count("not a regular file") == 2
    for name in ("", "torn", "huge"):
        with pytest.raises(InputError, match="not a regular file|has over"):
            collected([runs / name / "record.json"], KINDS)
