"""Tasks given as folders of images, or as what the Hugging Face library holds."""

import io

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from helpers.images import picture, write_folders, write_parquet
from immunis import InputError, SettingsError, Task
from immunis.data.loader import Stream


class Image:
    """A feature of ``datasets``, as far as it is used."""

    def __init__(self, decode=True):
        self.decode = decode


class ClassLabel:
    def __init__(self, names):
        self.names = names


class HuggingFace:
    """A data set of ``datasets``: columns, features, a format, and rows for a transform."""

    def __init__(self, columns, features, shown=None, transform=None):
        self.columns, self.features = columns, features
        self.column_names, self.transform = list(columns), transform
        self.format = {"type": "custom" if transform else shown}

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, key):
        if isinstance(key, int):
            return self.transform({name: of[key] for name, of in self.columns.items()})
        assert not self.transform and not getattr(self.features.get(key), "decode", False)
        return self.columns[key]

    def cast_column(self, name, feature):
        return HuggingFace(self.columns, {**self.features, name: feature}, self.format["type"])


def images(labels=(0, 1, 0, 1), names=("cat", "dog"), **how):
    """Encoded images of unequal sizes."""
    encoded = [{"bytes": picture(10 + i, 8), "path": None} for i in range(len(labels))]
    features = {"image": Image(), "label": ClassLabel(list(names)) if names else None}
    return HuggingFace({"image": encoded, "label": list(labels)}, features, **how)


@pytest.fixture
def folder(tmp_path):
    write_folders(tmp_path, "train")
    write_folders(tmp_path, "val")
    return tmp_path


def test_lists_of_pillows_images_are_those_of_their_files(tmp_path):
    pictures, labels = [], [0, 0, 1, 1]
    for row, label in enumerate(labels):
        place = tmp_path / f"class{label}" / f"{row}.png"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(picture(10 + row, 8))
        pictures.append(Picture.open(place))
    wanted = Task(tmp_path, size=8, scaling="clip").train.tensors()[0]
    for given in ((pictures, labels), {"image": pictures, "label": labels}):
        task = Task(given, given, size=8, scaling="clip")
        assert torch.equal(task.train.tensors()[0], wanted)
        assert torch.equal(task.test.tensors()[0], wanted)
    with pytest.raises(InputError, match="int came among images"):
        Task(([*pictures[:3], 1], labels), size=8)


def test_a_path_is_a_folder_of_images_with_its_splits(folder):
    task = Task(folder, size=16)
    inputs, labels = task.train.tensors()
    assert inputs.shape == (12, 3, 16, 16) and inputs.dtype == torch.float32
    assert labels.bincount().tolist() == [4, 4, 4]
    assert task.class_names == ["class0", "class1", "class2"]
    assert len(task.test.tensors()[0]) == 12
    drawn, _ = next(Stream(task, 4).subset(torch.arange(4), 4))
    assert drawn.shape == (4, 3, 16, 16)


def test_each_path_may_be_a_folder_of_classes(folder):
    task = Task(str(folder / "train"), str(folder / "val"), size=16)
    assert len(task.test.tensors()[0]) == 12 and task.outputs == 3
    assert Task(folder / "train", size=16).test is None
    pixels = torch.zeros(2, 3, 16, 16), torch.tensor([0, 1])
    assert Task(folder / "train", pixels, size=16).test.in_memory


def test_a_path_may_hold_parquet(tmp_path):
    write_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    task = Task(tmp_path, size=16)
    assert task.train.tensors()[0].shape == (12, 3, 16, 16) and task.test is None


def test_scaling_is_the_models(folder):
    one, two = (Task(folder, size=16, scaling=s).train.tensors()[0] for s in ("clip", "inception"))
    assert not torch.equal(one, two) and float(two.abs().max()) <= 1.0
    with pytest.raises(SettingsError, match="unknown scaling 'imagent': did you mean 'imagenet'"):
        Task(folder, scaling="imagent")
    with pytest.raises(SettingsError, match="size=4"):
        Task(folder, size=4)


def test_a_path_without_images_is_refused(tmp_path, folder):
    with pytest.raises(
        InputError, match="mine train: .*nowhere is no folder. A path names a folder"
    ):
        Task(tmp_path / "nowhere", name="mine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no images in class folders"):
        Task(tmp_path / "empty")
    (folder / "val" / "class7").mkdir()
    with pytest.raises(InputError, match="label 'class7' is not among the training classes"):
        Task(folder / "train", folder / "val")


def test_images_of_hugging_face_are_decoded_to_one_size():
    task = Task(images(), images((1, 0), None), size=16)
    assert task.train.tensors()[0].shape == (4, 3, 16, 16)
    assert task.class_names == ["cat", "dog"]
    assert task.test.tensors()[1].tolist() == [1, 0]


def test_strings_are_labels_of_the_training_classes():
    task = Task(images(("dog", "cat"), None), images(("dog", "dog"), None), size=16)
    assert task.train.tensors()[1].tolist() == [1, 0]
    assert task.test.tensors()[1].tolist() == [1, 1] and task.class_names == ["cat", "dog"]
    with pytest.raises(InputError, match="test: label 'elk' is not among the training classes"):
        Task(images(("dog", "cat"), None), images(("elk", "dog"), None), size=16)


def test_a_transform_or_a_format_of_ones_own_is_kept():
    def transform(row):
        pixels = np.array(Picture.open(io.BytesIO(row["image"]["bytes"])).resize((9, 9)))
        return {"pixel_values": torch.tensor(pixels).permute(2, 0, 1) / 255, "label": row["label"]}

    task = Task(images(transform=transform))
    assert task.train.tensors()[0].shape == (4, 3, 9, 9)
    assert task.class_names == ["cat", "dog"]
    shown = HuggingFace(
        {"image": np.ones((4, 3, 7, 7)), "label": [0, 1, 0, 1]}, {"image": None}, "torch"
    )
    assert Task(shown).input_shape == (3, 7, 7)


def test_a_dict_of_splits_gives_both_parts():
    both = {"train": images(), "validation": images((1, 0))}
    task = Task(both, size=16)
    assert len(task.test.tensors()[0]) == 2
    assert Task({"train": images()}, size=16).test is None
    assert len(Task(both, images((1, 0, 1)), size=16).test.tensors()[0]) == 3


def test_data_without_a_length_or_labels_is_refused():
    class Streamed:
        column_names, features = ["image", "label"], {"image": Image()}

    with pytest.raises(InputError, match="a streamed data set came.*take rows"):
        Task(Streamed())
    nameless = images()
    nameless.column_names = ["image"]
    with pytest.raises(InputError, match="no column of labels among image"):
        Task(nameless)


def test_pillow_images_in_a_data_set_are_told_what_to_do():
    class Own(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, row):
            return Picture.new("RGB", (8, 8)), row % 2

    with pytest.raises(InputError, match="Transform the images to tensors of one shape"):
        Task(Own())


def test_labels_in_one_column_are_told_what_to_do():
    with pytest.raises(InputError, match=r"Pass labels\[:, 0\]"):
        Task((torch.zeros(4, 2), torch.tensor([[0], [1], [0], [1]])))


def test_the_real_library_is_read_the_same(folder):
    datasets = pytest.importorskip("datasets")
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    columns = {"image": images().columns["image"], "label": [0, 1, 0, 1]}
    real = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    one, own = Task(real, size=16), Task(images(), size=16)
    assert one.train.tensors()[0].shape == own.train.tensors()[0].shape
    assert one.class_names == own.class_names
    both = datasets.DatasetDict({"train": real, "test": real})
    assert len(Task(both, size=16).test.tensors()[0]) == 4
    table = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 4, "label": [0, 1, 0, 1]})
    assert Task(table).input_shape == (2,)
    with pytest.raises(InputError, match="streamed"):
        Task(table.to_iterable_dataset())


def test_frames_of_pandas_are_read(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": pandas.array([1, 2, 3, 4], "Int64")})
    labels = pandas.Categorical(["no", "yes", "no", "yes"])
    for task in (Task(table.assign(label=labels)), Task((table, pandas.Series(labels)))):
        assert task.input_shape == (2,) and task.class_names == ["no", "yes"]
        assert task.train.tensors()[1].tolist() == [0, 1, 0, 1]
