"""Tasks of images: who gets which image, and none of them twice."""

import dataclasses
import shutil
import warnings

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from helpers.images import picture, write_cars, write_folders, write_parquet
from helpers.tasks import row_hashes
from immunis import InputError, SettingsError
from immunis.data.sources import images
from immunis.data.sources.image_dataset import Images
from immunis.data.sources.image_folders import split_again
from immunis.data.sources.image_layouts import read_images
from immunis.recipes import check_recipe, load_recipe
from immunis.recipes.pipeline import Pipeline


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        write_parquet(tmp_path / "own" / f"{split}.parquet", each=10)
        write_folders(tmp_path / "harm", split, classes=2, each=9)
    return tmp_path


def test_scaling_is_the_same_in_memory_and_streamed(folder):
    means = [
        images("own", "harm", size=16, memory=memory, scaling="clip", folder=str(folder))
        .primary.train.tensors()[0].mean()
        for memory in (True, False)
    ]  # fmt: skip
    assert torch.isclose(*means, atol=1e-5)


def test_defender_and_attacker_are_scored_on_one_copy_of_the_test_images(folder):
    tasks = images("own", "harm", size=16, memory=True, folder=str(folder))
    places = {task.test.tensors()[0].data_ptr() for task in (tasks.harmful, tasks.attacker)}
    assert len(places) == 1


@pytest.mark.parametrize("memory", [True, False])
def test_defender_and_attacker_share_no_image(folder, memory):
    tasks = images("own", "harm", size=16, memory=memory, folder=str(folder))
    mine, theirs = (set(row_hashes(t.train)) for t in (tasks.harmful, tasks.attacker))
    assert (len(mine), len(theirs)) == (10, 8)
    assert not mine & theirs
    assert tasks.primary.outputs == 3
    assert tasks.harmful.classes == tasks.attacker.classes == (0, 1)


def test_an_attacker_may_hold_more_images_than_the_defender(folder):
    tasks = images("own", "harm", size=16, memory=True, attacker_times=3, folder=str(folder))
    mine, theirs = (set(row_hashes(t.train)) for t in (tasks.harmful, tasks.attacker))
    assert (len(mine), len(theirs)) == (6, 12) and not mine & theirs
    with pytest.raises(SettingsError, match="attacker_times=0"):
        images("own", "harm", size=16, attacker_times=0, folder=str(folder))


def test_images_that_occur_twice_are_used_once(folder):
    source = folder / "harm" / "train" / "class0"
    (source / "again.png").write_bytes((source / "1.png").read_bytes())
    known = folder / "harm" / "val" / "class0" / "2.png"
    (source / "seen.png").write_bytes(known.read_bytes())
    with pytest.warns(UserWarning, match="2 training image"):
        tasks = images("own", "harm", size=16, memory=True, folder=str(folder))
    train = [*row_hashes(tasks.harmful.train), *row_hashes(tasks.attacker.train)]
    assert len(train) == len(set(train)) == 18


def contents(items):
    return sorted(item.key() for item in items)


@pytest.mark.parametrize("options", [{}, {"memory": True}, {"cache": True}])
def test_resplit_redraws_the_test_images_and_keeps_every_class_s_numbers(
    folder, options, monkeypatch
):
    monkeypatch.setenv("IMMUNIS_CACHE", str(folder / "cache"))

    def made(**resplit):
        tasks = images("own", "harm", size=16, folder=str(folder), **options, **resplit)
        return tasks.attacker, (tasks.harmful.train, tasks.attacker.train, tasks.attacker.test)

    given, before = made()
    task, after = made(resplit=1)
    old, new = (set().union(*(row_hashes(part) for part in of)) for of in (before, after))
    assert old == new  # the same images
    assert set(row_hashes(before[2])) != set(row_hashes(after[2]))  # in other parts
    for label in (0, 1):
        counts = [[int((p.tensors()[1] == label).sum()) for p in of] for of in (before, after)]
        assert counts[0] == counts[1]
    prints = [each.test.fingerprint() for each in (given, task, made(resplit=2)[0])]
    assert len(set(prints)) == 3  # so a record says which split it was made on
    assert made(resplit=1)[0].test.fingerprint() == prints[1]


def test_resplit_depends_on_images_not_on_their_order_and_keeps_copies_together(folder):
    items = read_images(folder / "harm", "train", 16, None, "imagenet").items
    train, test = (Images(part, 16) for part in (items[:12], items[12:]))
    swapped = Images([*items[:12]][::-1], 16)
    one, other = (split_again(part, test, 3)[1] for part in (train, swapped))
    assert contents(one.items) == contents(other.items) and len(one) == len(test)
    twice = [*items, *(dataclasses.replace(item, name="again") for item in items)]
    both = split_again(Images(twice[:24], 16), Images(twice[24:], 16), 3)
    assert not set(contents(both[0].items)) & set(contents(both[1].items))
    with pytest.raises(SettingsError, match="resplit=-1"):
        images("own", "harm", resplit=-1, folder=str(folder))


def test_a_transfer_task_comes_along(folder):
    tasks = images("own", "harm", transfer="own", size=16, memory=True, folder=str(folder))
    assert [task.name for task in tasks.transfer] == ["own"]
    assert tasks.harmful.class_names == ["class0", "class1"]


def test_sizes_and_names_are_checked(folder):
    with pytest.raises(SettingsError, match="size=2: expected at least 8"):
        images("own", "harm", size=2, folder=str(folder))
    with pytest.raises(InputError, match="data not found"):
        images("own", "nowhere", folder=str(folder))
    recipe = check_recipe(
        {"data": {"source": "images", "primary": "own", "harmful": "harm", "size": 16}},
        folder / "r.toml",
    )
    with pytest.raises(SettingsError, match="name a network"):
        Pipeline(recipe, recipe.tasks(str(folder))).measure()
    assert recipe.tasks(str(folder)).primary.input_shape == (3, 16, 16)


def test_fingerprints_tell_data_apart_without_decoding(folder):
    lazy = images("own", "harm", size=16, folder=str(folder))
    again = images("own", "harm", size=16, folder=str(folder))
    prints = {t.train.fingerprint() for t in (*lazy[:3], *again[:3])}
    assert len(prints) == 3


def test_labels_that_only_the_test_images_have_are_refused_at_once(tmp_path):
    for name in ("a", "b"):
        for split, labels in (("train", [0, 1, 0, 1]), ("test", [0, 1, 2])):
            rows = [picture() for _ in labels]
            table = pa.table({"image": rows, "label": labels})
            (tmp_path / name).mkdir(exist_ok=True)
            pyarrow.parquet.write_table(table, tmp_path / name / f"{split}.parquet")
    with pytest.raises(InputError, match="a: test images have labels .* among them 2"):
        images("a", "b", size=16, folder=str(tmp_path))
    with pytest.raises(SettingsError, match="unknown scaling 'half'"):
        images("a", "b", size=16, folder=str(tmp_path), scaling="half")


def test_the_bundled_imagenet_recipes_name_these_layouts(tmp_path):
    """The paper's deep rows, read in their own layouts (ImageNet and Country211 folders)."""
    for split in ("train", "val"):
        write_folders(tmp_path / "imagenet", split, each=8)
    for split in ("train", "test"):
        write_folders(tmp_path / "country211", split, each=8)
    write_cars(tmp_path / "cars", each=40)
    for name in ("imagenet-cars-resnet18", "imagenet-country211-vit"):
        tasks = load_recipe(name).tasks(str(tmp_path))
        assert tasks.primary.input_shape == (3, 224, 224)
        assert tasks.primary.outputs == 3
        assert tasks.harmful.name in ("cars", "country211")


def test_training_images_that_are_all_test_images_are_refused(tmp_path):
    for split in ("train", "val"):
        write_folders(tmp_path / "own", split)
    write_folders(tmp_path / "harm", "train")
    shutil.copytree(tmp_path / "harm" / "train", tmp_path / "harm" / "val")
    with pytest.raises(InputError, match="every training image is also a test image"):
        images("own", "harm", size=16, folder=str(tmp_path))


@pytest.mark.parametrize("memory", [True, False])
def test_a_class_of_one_image_is_known_to_the_attacker_too(tmp_path, memory):
    for split in ("train", "val"):
        write_folders(tmp_path / "own", split, each=6)
        write_folders(tmp_path / "harm", split, each=6)
    for index in range(1, 6):
        (tmp_path / "harm" / "train" / "class2" / f"{index}.png").unlink()
    found = images("own", "harm", size=16, memory=memory, folder=str(tmp_path))
    assert found.attacker.outputs == found.harmful.outputs == 3
    with pytest.raises(SettingsError, match="both 'own'"):
        images("own", "own", size=16, folder=str(tmp_path))


def spoil(folder, count):
    for index in range(count):
        (folder / "train" / "class1" / f"{index}.png").write_bytes(b"\x89PNG nothing")


@pytest.mark.parametrize("memory", [True, False])
def test_empty_files_are_no_copies_of_one_another(tmp_path, memory):
    for split in ("train", "val"):
        write_folders(tmp_path / "own", split, each=6)
        write_folders(tmp_path / "harm", split, each=6)
    for index in range(4):
        (tmp_path / "harm" / "train" / "class1" / f"{index}.png").write_bytes(b"")
    same = tmp_path / "harm" / "train" / "class0"
    (same / "copy.png").write_bytes((same / "0.png").read_bytes())

    def read():
        found = images("own", "harm", size=16, memory=memory, folder=str(tmp_path))
        found.harmful.train.tensors()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(InputError, match=r"2 of 9 .* cannot be read.*cannot identify"):
            read()
    assert "1 training image(s) occur twice" in str(told[0].message)
    assert "object at 0x" not in " ".join(str(warning.message) for warning in told)


def test_in_memory_alike(tmp_path):
    for split in ("train", "val"):
        write_folders(tmp_path / "own", split, each=6)
        write_folders(tmp_path / "harm", split, each=6)
    spoil(tmp_path / "own", 1)
    with pytest.warns(UserWarning, match="1 of 18 samples so far"):
        tasks = images("own", "harm", size=16, memory=True, folder=str(tmp_path))
    assert len(tasks.primary.train.tensors()[0]) == 17
    spoil(tmp_path / "own", 4)
    with pytest.raises(InputError, match="4 of 18 samples cannot be read"):
        images("own", "harm", size=16, memory=True, folder=str(tmp_path))


@pytest.mark.parametrize("memory", [True, False])
def test_a_file_that_is_missing_counts_as_corrupt(tmp_path, memory):
    for split in ("train", "val"):
        write_folders(tmp_path / "own", split, each=6)
        write_folders(tmp_path / "harm", split, each=6)
    lost = tmp_path / "harm" / "train" / "class1" / "0.png"
    lost.unlink()
    lost.symlink_to("nowhere.png")

    def rows():
        tasks = images("own", "harm", size=16, memory=memory, folder=str(tmp_path))
        return sum(len(task.train.tensors()[0]) for task in (tasks.harmful, tasks.attacker))

    with pytest.warns(UserWarning, match=r"skipped .*class1.0\.png"):
        assert rows() == 17


@pytest.mark.parametrize("memory", [True, False])
def test_a_task_is_the_same_with_a_cache(tmp_path, memory, monkeypatch):
    monkeypatch.setenv("IMMUNIS_CACHE", str(tmp_path / "kept"))
    for name in ("own", "harm"):
        for split in ("train", "val"):
            write_folders(tmp_path / name, split, classes=2)
    settings = {"size": 8, "memory": memory, "folder": str(tmp_path)}
    expected = images("own", "harm", **settings)
    for _ in range(2):
        found = images("own", "harm", cache=True, **settings)
        for part in ("primary", "harmful", "attacker"):
            a, b = (getattr(tasks, part).train.tensors() for tasks in (expected, found))
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1], b[1])
    assert len(list((tmp_path / "kept").iterdir())) == 4  # two splits of two sets
