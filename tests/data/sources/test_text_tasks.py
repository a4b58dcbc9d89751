"""Text tasks from files."""

import csv
import json
import warnings

import pytest

from immunis import InputError, SettingsError
from immunis.audits.disjoint import disjoint_rows
from immunis.data.sources import text
from immunis.data.sources.text_files import checked_files, read_texts


def tokenizer(texts, **_):
    return {"input_ids": [[1 + sum(map(ord, word)) for word in t.lower().split()] for t in texts]}


def rows(label, count, start=0):
    return [(f"{label} number {start + i}", label) for i in range(count)]


TRAIN = [row for label in ("red", "blue") for row in rows(label, 6)]
TEST = [row for label in ("red", "blue") for row in rows(label, 2, 50)]


@pytest.fixture
def folder(tmp_path):
    own = [row for label in ("cat", "dog", "fish") for row in rows(label, 5)]
    for name, part in (("own", own), ("harm", TRAIN)):
        with (tmp_path / f"{name}_train.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "category"), *part])
    held = [r for label in ("cat", "dog", "fish") for r in rows(label, 2, 70)]
    lines = "\n".join(json.dumps({"sentence": t, "label": y}) for t, y in held)
    (tmp_path / "own_test.jsonl").write_text(lines)
    splits = {"train": TRAIN, "val": TEST, "test": TEST}
    (tmp_path / "harm.json").write_text(json.dumps(splits))
    (tmp_path / "groups.json").write_text(json.dumps({"pets": ["cat", "dog"], "food": ["fish"]}))
    return tmp_path


OWN = {"file": "own_train.csv", "test": "own_test.jsonl"}


def test_tasks_come_from_files_of_several_kinds(folder):
    tasks = text(OWN, {"file": "harm.json"}, tokenizer, folder=folder, max_length=4)
    assert tasks.primary.class_names == ["cat", "dog", "fish"]
    assert (tasks.primary.name, tasks.harmful.name) == ("own", "harm")
    assert [len(t.train.tensors()[0]) for t in (tasks.harmful, tasks.attacker)] == [6, 6]
    assert tasks.attacker.test.tensors()[0].shape == (4, 2, 4)
    assert disjoint_rows(tasks.attacker, tasks.primary, tasks.harmful)["shared"] == 0


def test_labels_are_kept_and_dropped_by_name_or_by_group(folder):
    def labels(**which):
        files = checked_files({**OWN, "groups": "groups.json", **which})
        return sorted({label for _, label in read_texts(files, "train", folder)})

    assert labels(keep=["pets"]) == ["cat", "dog"]
    assert labels(drop=["food"]) == ["cat", "dog"]
    assert labels(keep=["pets", "fish"], drop=["dog"]) == ["cat", "fish"]
    with pytest.raises(SettingsError, match="did you mean 'pets'"):
        labels(keep=["pet"])


def test_parquet_and_folders_are_read(folder):
    import pyarrow
    import pyarrow.parquet

    columns = dict(zip(("text", "label"), map(list, zip(*TRAIN, strict=True)), strict=True))
    (folder / "both").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "both" / "train.parquet")
    (folder / "both" / "test.tsv").write_text("text\tlabel\nred 1\tred\nblue 2\tblue\n")
    files = checked_files({"file": "both"})
    assert read_texts(files, "train", folder) == TRAIN
    assert read_texts(files, "test", folder) == [("red 1", "red"), ("blue 2", "blue")]


def test_copies_of_a_text_are_dropped_from_training(folder):
    copies = [("RED, number 50!", "red"), ("red number 0", "red"), ("cat NUMBER 1", "blue")]
    splits = {"train": [*TRAIN, *copies], "test": TEST}
    (folder / "harm.json").write_text(json.dumps(splits))
    with pytest.warns(UserWarning, match="occur twice") as told:
        tasks = text(OWN, {"file": "harm.json"}, tokenizer, folder=folder, max_length=4)
    said = " ".join(str(warning.message) for warning in told)
    assert "harm: 2 training text(s) occur twice" in said  # of the test, and of another row
    assert "own: 1 training text(s) occur twice" in said  # of the harmful task
    both = [t.train.tensors()[0] for t in (tasks.harmful, tasks.attacker)]
    assert sum(map(len, both)) == 13


def test_a_few_rows_of_each_class_are_taken(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tasks = text(OWN, {"file": "harm.json"}, tokenizer, [OWN], 4, rows=2, folder=folder)
    assert len(tasks.primary.train.tensors()[0]) == len(tasks.transfer[0].train.tensors()[0]) == 6


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "text,label\n,red\n", "row 0 has no text"),
        ("a.csv", "words,label\na,red\n", "columns words, label; none is called text"),
        ("a.csv", "", "holds no rows"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"other": []}', "holds other; expected train"),
        ("a.json", "[[1, 2, 3]]", "a row is"),
        ("a.jsonl", "nothing", "cannot be read"),
        ("a.parquet", "nothing", "cannot be read"),
        ("a.txt", "nothing", "expected a file of texts"),
    ],
)
def test_files_that_cannot_be_read_are_refused(folder, name, content, says):
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=says):
        read_texts(checked_files({"file": name}), "train", folder)


def test_what_is_missing_is_named(folder):
    with pytest.raises(InputError, match="training texts only; name the file of test texts"):
        read_texts(checked_files({"file": "own_train.csv"}), "test", folder)
    with pytest.raises(SettingsError, match="needs a file"):
        checked_files({"path": "a.csv"})
    with pytest.raises(SettingsError, match="did you mean 'keep'"):
        checked_files({"file": "a.csv", "kep": []})
    with pytest.raises(SettingsError, match="0 train texts are left"):
        read_texts(checked_files({**OWN, "keep": ["bird"]}), "train", folder)
