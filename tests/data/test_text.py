"""Text as token ids with masks: packed, taken from whatever users have, compared."""

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from immunis import InputError, SettingsError, Task
from immunis.data.copies import COPY, count_shared, sketches
from immunis.data.text import is_text, normal, pack, unpacked
from immunis.models.text import text_encoder

TEXTS = ["one two", "three", "four five six", "one", "two two", "six"]
WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
LABELS = ["b", "a", "b", "a", "b", "a"]


def tokenizer(texts, truncation, max_length, padding):
    assert truncation
    assert not padding
    return {"input_ids": [[WORDS[word] for word in t.split()][:max_length] for t in texts]}


IDS = tokenizer(TEXTS, True, 4, False)["input_ids"]
PACKED = pack(IDS, length=4)


class Rows(Dataset):
    """Samples from a list."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return self.rows[row]


class Frame:
    """What pandas has, as far as it is used."""

    def __init__(self, **columns):
        self.held = {name: np.array(values) for name, values in columns.items()}
        self.columns = list(columns)

    def to_dict(self):
        return self.held

    def __getitem__(self, name):
        return Column(self.held[name])


class Column:
    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return self.values


class HuggingFace:
    """What ``datasets.Dataset`` has, as far as it is used."""

    def __init__(self, names=None, **columns):
        self.held, self.column_names = columns, list(columns)
        self.features = {name: ClassLabel(names) if name == "label" else None for name in columns}

    def __len__(self):
        return len(next(iter(self.held.values())))

    def __getitem__(self, name):
        return self.held[name]


class ClassLabel:
    def __init__(self, names):
        if names is not None:
            self.names = names


def test_text_is_packed_with_its_mask_and_unpacked_to_the_longest():
    ids, mask = unpacked(PACKED[[1, 0]], padding=9)
    assert ids.tolist() == [[3, 9], [1, 2]]
    assert mask.tolist() == [[1, 0], [1, 1]]
    assert is_text(PACKED)
    assert not is_text(PACKED * 2)
    assert not is_text(PACKED.float())


def test_padding_on_the_left_moves_to_the_right():
    left = pack([[0, 0, 5, 6], [0, 7, 8, 9]], [[0, 0, 1, 1], [0, 1, 1, 1]], 4)
    assert torch.equal(left, pack([[5, 6], [7, 8, 9]], length=4))


@pytest.mark.parametrize(
    ("ids", "masks", "says"),
    [
        ([[1], []], None, "text 1 has no tokens"),
        ([[1, 2, 3]], None, "has 3 tokens; at most 2"),
        ([[1, 2]], [[1]], "must agree"),
    ],
)
def test_text_that_cannot_be_packed_is_refused(ids, masks, says):
    with pytest.raises(InputError, match=says):
        pack(ids, masks, length=2)


def dict_rows(**more):
    return [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "label": label}
        for ids, label in zip(IDS, [1, 0, 1, 0, 1, 0], strict=True)
    ]


def collate(rows):
    """Pad each batch to its own longest row, on the left, as tokenizers of decoders do."""
    longest = max(len(row["input_ids"]) for row in rows)

    def column(name):
        return torch.tensor([[0] * (longest - len(row[name])) + row[name] for row in rows])

    labels = torch.tensor([row["label"] for row in rows])
    return {name: column(name) for name in ("input_ids", "attention_mask")} | {"labels": labels}


@pytest.mark.parametrize(
    "source",
    [
        (TEXTS, LABELS),
        (np.array(TEXTS), np.array(LABELS)),
        {"text": TEXTS, "label": LABELS},
        Frame(text=TEXTS, intent=LABELS),
        (Frame(text=TEXTS), LABELS),
        HuggingFace(text=TEXTS, label=LABELS),
        HuggingFace(names=["a", "b"], input_ids=IDS, label=[1, 0, 1, 0, 1, 0]),
        Rows([{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)]),
        Rows(list(zip(TEXTS, LABELS, strict=True))),
        DataLoader(Rows(list(zip(TEXTS, LABELS, strict=True))), batch_size=4),
        ({"input_ids": PACKED[:, 0], "attention_mask": PACKED[:, 1]}, LABELS),
    ],
)
def test_text_is_taken_in_any_common_form(source):
    task = Task(source, source, tokenizer=tokenizer, max_length=4)
    inputs, labels = task.train.tensors()
    assert torch.equal(inputs, PACKED)
    assert labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert (task.class_names, task.input_shape) == (["a", "b"], (2, 4))


@pytest.mark.parametrize(
    "source", [Rows(dict_rows()), DataLoader(Rows(dict_rows()), 4, collate_fn=collate)]
)
def test_batches_that_are_padded_unlike_make_one_tensor(source):
    inputs, labels = Task(source, max_length=4).train.tensors()
    assert torch.equal(inputs, PACKED)
    assert labels.tolist() == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("empty", ["", " \n"])
def test_empty_texts_are_refused(empty):
    with pytest.raises(InputError, match=r"text 1 is empty \(1 in all\); drop it"):
        Task(([TEXTS[0], empty], [0, 1]), tokenizer=tokenizer)


def test_frames_of_pandas_are_taken():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    assert torch.equal(Task(frame, tokenizer=tokenizer, max_length=4).train.tensors()[0], PACKED)
    table = pandas.DataFrame({"a": [1.0, 2.0], "b": [3, 4], "y": [0, 1]})
    assert Task(table).train.tensors()[0].tolist() == [[1, 3], [2, 4]]


def test_data_sets_of_hugging_face_are_taken():
    datasets = pytest.importorskip("datasets")
    source = datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS})
    assert torch.equal(Task(source, tokenizer=tokenizer, max_length=4).train.tensors()[0], PACKED)
    kinds = datasets.Features(
        {"input_ids": datasets.Sequence(datasets.Value("int32")),
         "label": datasets.ClassLabel(names=["a", "b"])}
    )  # fmt: skip
    columns = {"input_ids": IDS, "label": [1, 0, 1, 0, 1, 0]}
    task = Task(datasets.Dataset.from_dict(columns, features=kinds), max_length=4)
    assert torch.equal(task.train.tensors()[0], PACKED)
    assert task.class_names == ["a", "b"]


def test_a_frame_of_numbers_is_a_table():
    task = Task(Frame(size=[1.0, 2.0, 3.0], rooms=[1, 2, 3], target=[0.5, 0.25, 1.0]))
    assert (task.kind, task.input_shape) == ("regression", (2,))
    assert task.train.tensors()[0].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_dicts_of_images_stream():
    rows = [{"pixel_values": torch.full((3, 2, 2), float(i)), "label": i % 2} for i in range(4)]
    for source in (Rows(rows), DataLoader(Rows(rows), batch_size=2)):
        task = Task(source)
        assert not task.train.in_memory
        assert task.input_shape == (3, 2, 2)
        assert task.classes == (0, 1)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ((TEXTS, LABELS), "text came without a tokenizer"),
        ({"text": TEXTS}, "no column of labels among text"),
        ({"label": LABELS}, "no column of inputs; taken are images"),
        ({"text": TEXTS, "label": LABELS[:3]}, "text has 6, label has 3"),
        ({"price": [1.0, 2.0], "colour": ["red", "blue"], "label": [0, 1]}, "'colour' holds str"),
        (([object()] * 6, LABELS), "Taken are images"),
        (object(), "Taken are images"),
    ],
)
def test_other_data_is_refused_with_what_is_taken(source, says):
    with pytest.raises(InputError, match=says):
        Task(source)


def test_labels_that_training_lacks_are_refused():
    with pytest.raises(InputError, match="'c' is not among the training classes"):
        Task((TEXTS, LABELS), (TEXTS[:2], ["c", "a"]), tokenizer=tokenizer)
    with pytest.raises(InputError, match="drop missing texts"):
        Task((["one", None, "two"], [0, 1, 0]), tokenizer=tokenizer)
    with pytest.raises(SettingsError, match="tokenizer is of type int"):
        Task((TEXTS, LABELS), tokenizer=3)


def test_a_missing_library_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SettingsError, match=r"pip install 'immunis\[text\]'"):
        Task((TEXTS, LABELS), tokenizer="a folder")
    with pytest.raises(SettingsError, match=r"pip install 'immunis\[text\]'"):
        text_encoder("a folder", pooling="mean")


def test_copies_of_texts_are_equal_tokens_and_nothing_near():
    near = PACKED.clone()
    near[:, 0, 0] += 10
    parts = (PACKED, PACKED[:2], near)
    found = sketches(*(Task((part, [0, 1] * (len(part) // 2))).train for part in parts))
    assert count_shared(found[1], found[0], tolerance=COPY) == 2
    assert count_shared(found[2], found[0], tolerance=COPY) == 0


def test_a_text_reads_the_same_with_other_case_space_and_accents():
    assert normal("Café,  what's  up?") == normal("cafe what s up")
    assert normal("one two") != normal("onetwo")
