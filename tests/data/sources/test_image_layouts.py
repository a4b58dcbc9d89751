"""Lists of images in every layout, and refusals of what fits none."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from scipy.io import savemat

from helpers.images import picture, write_cars, write_folders, write_parquet
from immunis import InputError
from immunis.data.sources.image_layouts import read_images


def test_class_folders(tmp_path):
    write_folders(tmp_path, "train")
    write_folders(tmp_path, "val")
    train = read_images(tmp_path, "train", 16)
    test = read_images(tmp_path, "test", 16, train.classes)
    assert len(train) == len(test) == 12
    x, y = train[5]
    assert x.shape == (3, 16, 16)
    assert x.dtype == torch.float32
    assert (y, train.classes) == (1, ["class0", "class1", "class2"])


def test_test_classes_are_numbered_as_in_training(tmp_path):
    write_folders(tmp_path, "train")
    write_folders(tmp_path, "test")
    for file in (tmp_path / "test" / "class0").iterdir():
        file.unlink()
    (tmp_path / "test" / "class0").rmdir()
    train = read_images(tmp_path, "train", 16)
    test = read_images(tmp_path, "test", 16, train.classes)
    assert {item.label for item in test.items} == {1, 2}
    (tmp_path / "test" / "strange").mkdir()
    with pytest.raises(InputError, match="'strange' is not among the training classes"):
        read_images(tmp_path, "test", 16, train.classes)


@pytest.mark.parametrize("name", ["train.parquet", "data/train-00000-of-00001.parquet"])
def test_parquet(tmp_path, name):
    write_parquet(tmp_path / name)
    train = read_images(tmp_path, "train", 16)
    assert len(train) == 12
    assert train[11][1] == 2


def test_parquet_with_columns_of_other_names_and_names_of_classes(tmp_path):
    features = {"img": {"_type": "Image"}, "fine": {"_type": "ClassLabel", "names": ["a", "b"]}}
    told = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pa.table({"img": [{"bytes": picture()}] * 2, "fine": [1, 0], "note": ["x", "y"]})
    where = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata(told), where)
    train = read_images(tmp_path, "train", 16)
    assert train.classes == ["a", "b"]
    assert [item.label for item in train.items] == [1, 0]
    more = table.append_column("coarse", pa.array([0, 0]))
    pyarrow.parquet.write_table(more, where)
    with pytest.raises(InputError, match="lacks column label; it has img .*, coarse .int64."):
        read_images(tmp_path, "train", 16)


@pytest.mark.parametrize("told", [b"{", b"[]", b'{"info": 3}', b"\xff", b"[" * 100_000])
def test_parquet_with_strange_words_about_itself_is_read(tmp_path, told):
    table = pa.table({"image": [picture()], "label": [0]})
    told = table.replace_schema_metadata({b"huggingface": told})
    pyarrow.parquet.write_table(told, tmp_path / "train.parquet")
    assert read_images(tmp_path, "train", 16).classes is None


def test_an_unlabelled_test_split_does_not_stand_before_a_labelled_one(tmp_path):
    for split in ("train", "val"):
        write_folders(tmp_path / "flat", split)
    (tmp_path / "flat" / "test" / "images").mkdir(parents=True)
    (tmp_path / "flat" / "test" / "images" / "0.png").write_bytes(picture())
    train = read_images(tmp_path / "flat", "train", 16)
    with pytest.warns(UserWarning, match="using val as test data.*'images' is not"):
        found = read_images(tmp_path / "flat", "test", 16, train.classes)
    assert len(found) == len(train)
    write_parquet(tmp_path / "hub" / "validation.parquet")
    table = pa.table({"image": [picture()] * 2, "label": [-1, -1]})
    pyarrow.parquet.write_table(table, tmp_path / "hub" / "test.parquet")
    with pytest.warns(UserWarning, match="lacks its image or its label .got -1"):
        assert len(read_images(tmp_path / "hub", "test", 16)) == 12


def test_parquet_whose_splits_name_classes_otherwise_is_refused(tmp_path):
    for split, names in (("train", ["a", "b"]), ("test", ["b", "a"])):
        told = {"info": {"features": {"label": {"names": names}}}}
        table = pa.table({"image": [picture()] * 2, "label": [0, 1]})
        table = table.replace_schema_metadata({b"huggingface": json.dumps(told).encode()})
        pyarrow.parquet.write_table(table, tmp_path / f"{split}.parquet")
    with pytest.raises(InputError, match="classes of test are not those of"):
        read_images(tmp_path, "test", 16, read_images(tmp_path, "train", 16).classes)


def test_stanford_cars_with_its_devkit(tmp_path):
    write_cars(tmp_path)
    train, test = (read_images(tmp_path, split, 16) for split in ("train", "test"))
    assert [item.label for item in train.items] == [0, 1] * 3
    assert test[0][0].shape == (3, 16, 16)


def test_nested_images_are_read_and_classes_without_any_are_told(tmp_path):
    write_folders(tmp_path, "train", classes=2, each=2)
    deep = tmp_path / "train" / "class1" / "more"
    deep.mkdir()
    (deep / "x.tif").write_bytes(picture(kind="TIFF"))
    (tmp_path / "train" / "hollow").mkdir()
    with pytest.warns(UserWarning, match=r"1 of 3 classes hold no images, among them 'hollow'"):
        found = read_images(tmp_path, "train", 16)
    assert [item.label for item in found.items] == [0, 0, 1, 1, 1]


def test_an_empty_folder(tmp_path):
    with pytest.raises(InputError, match="holds no train images"):
        read_images(tmp_path, "train", 16)
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match="holds no images in class folders"):
        read_images(tmp_path, "train", 16)
    with pytest.raises(InputError, match="does not exist"):
        read_images(tmp_path / "x", "train", 16)


def test_parquet_without_its_columns(tmp_path):
    pyarrow.parquet.write_table(pa.table({"image": [b"x"]}), tmp_path / "train.parquet")
    with pytest.raises(InputError, match="lacks column label"):
        read_images(tmp_path, "train", 16)
    pyarrow.parquet.write_table(
        pa.table({"image": ["x"], "label": ["cat"]}), tmp_path / "train.parquet"
    )
    with pytest.raises(InputError, match="lacks column image; it has image .string."):
        read_images(tmp_path, "train", 16)
    (tmp_path / "train.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="not a readable parquet"):
        read_images(tmp_path, "train", 16)


def test_cars_without_labels_or_with_paths(tmp_path):
    write_cars(tmp_path)
    (tmp_path / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(InputError, match="cars_test_annos_withlabels.mat"):
        read_images(tmp_path, "test", 16)
    rows = np.zeros(1, dtype=[("class", "O"), ("fname", "O")])
    rows[0] = (1, "../../etc/passwd")
    savemat(tmp_path / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    with pytest.raises(InputError, match="expected plain file names"):
        read_images(tmp_path, "train", 16)
    (tmp_path / "devkit" / "cars_train_annos.mat").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not Stanford Cars' annotation file"):
        read_images(tmp_path, "train", 16)


def test_the_real_sets_are_read(data_folder):
    test = read_images(data_folder / "flowers102_64", "test", 64)
    assert len(test) == 1637
    assert test[0][0].shape == (3, 64, 64)
