"""Images in every layout; corrupt ones skipped and counted; streams of batches by step number."""

import importlib.util
import io
import json
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch.utils.data import DataLoader, TensorDataset

from helpers.images import picture, write_cars, write_folders, write_parquet
from immunis import InputError, SettingsError, Task
from immunis.data.loader import Stream, ahead, held_out, spread
from immunis.data.sources import images
from immunis.data.sources.gpu_decode import Decoder
from immunis.data.sources.image_layouts import read_images
from immunis.data.transforms import augmented, mixed
from immunis.recipes import check_recipe, load_recipe
from immunis.recipes.pipeline import measure_recipe


class TestLayouts:
    def test_class_folders(self, tmp_path):
        write_folders(tmp_path, "train")
        write_folders(tmp_path, "val")
        train = read_images(tmp_path, "train", 16)
        test = read_images(tmp_path, "test", 16, train.classes)
        assert len(train) == len(test) == 12
        x, y = train[5]
        assert x.shape == (3, 16, 16)
        assert x.dtype == torch.float32
        assert (y, train.classes) == (1, ["class0", "class1", "class2"])

    def test_test_classes_are_numbered_as_in_training(self, tmp_path):
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
    def test_parquet(self, tmp_path, name):
        write_parquet(tmp_path / name)
        train = read_images(tmp_path, "train", 16)
        assert len(train) == 12
        assert train[11][1] == 2

    def test_parquet_with_columns_of_other_names_and_names_of_classes(self, tmp_path):
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
    def test_parquet_with_strange_words_about_itself_is_read(self, tmp_path, told):
        table = pa.table({"image": [picture()], "label": [0]})
        told = table.replace_schema_metadata({b"huggingface": told})
        pyarrow.parquet.write_table(told, tmp_path / "train.parquet")
        assert read_images(tmp_path, "train", 16).classes is None

    def test_an_unlabelled_test_split_does_not_stand_before_a_labelled_one(self, tmp_path):
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

    def test_parquet_whose_splits_name_classes_otherwise_is_refused(self, tmp_path):
        for split, names in (("train", ["a", "b"]), ("test", ["b", "a"])):
            told = {"info": {"features": {"label": {"names": names}}}}
            table = pa.table({"image": [picture()] * 2, "label": [0, 1]})
            table = table.replace_schema_metadata({b"huggingface": json.dumps(told).encode()})
            pyarrow.parquet.write_table(table, tmp_path / f"{split}.parquet")
        with pytest.raises(InputError, match="classes of test are not those of"):
            read_images(tmp_path, "test", 16, read_images(tmp_path, "train", 16).classes)

    def test_labels_that_only_the_test_images_have_are_refused_at_once(self, tmp_path):
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

    def test_a_loader_of_images_counts_what_is_corrupt(self, tmp_path):
        write_folders(tmp_path, "train")
        next((tmp_path / "train").rglob("*.png")).write_bytes(b"no image")
        loader = DataLoader(read_images(tmp_path, "train", 16), 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = Task(loader, name="own")
        assert sum(len(y) for _, y in task.train.batches()) == 11
        assert len(task.train.corrupt) == 1

    def test_a_loader_with_an_iteration_of_its_own_is_left_alone(self):
        class Own(DataLoader):
            def __iter__(self):
                return ((x * 2, y) for x, y in super(Own, self).__iter__())

        data = TensorDataset(torch.randn(20, 8), torch.arange(20) % 3)
        assert Task(Own(data, batch_size=4), name="own").outputs == 3

    def test_stanford_cars_with_its_devkit(self, tmp_path):
        write_cars(tmp_path)
        train, test = (read_images(tmp_path, split, 16) for split in ("train", "test"))
        assert [item.label for item in train.items] == [0, 1] * 3
        assert test[0][0].shape == (3, 16, 16)

    def test_the_bundled_imagenet_recipes_name_these_layouts(self, tmp_path):
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


def test_pixels_are_cropped_at_the_centre_and_normalised(tmp_path):
    pixels = np.zeros((8, 12, 3), dtype=np.uint8)
    pixels[:, 2:10] = 255
    (tmp_path / "train" / "a").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "train" / "a" / "x.png")
    x, _ = read_images(tmp_path, "train", 8)[0]
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(x, white[:, None, None].expand(3, 8, 8), atol=1e-5)


class TestTasks:
    @pytest.fixture
    def folder(self, tmp_path):
        for split in ("train", "val"):
            write_parquet(tmp_path / "own" / f"{split}.parquet", each=10)
            write_folders(tmp_path / "harm", split, classes=2, each=9)
        return tmp_path

    def test_scaling_is_the_same_in_memory_and_streamed(self, folder):
        means = [
            images("own", "harm", size=16, memory=memory, scaling="clip", folder=str(folder))
            .primary.train.tensors()[0].mean()
            for memory in (True, False)
        ]  # fmt: skip
        assert torch.isclose(*means, atol=1e-5)

    @pytest.mark.parametrize("memory", [True, False])
    def test_defender_and_attacker_share_no_image(self, folder, memory):
        tasks = images("own", "harm", size=16, memory=memory, folder=str(folder))
        mine, theirs = (set(t.train.row_hashes()) for t in (tasks.harmful, tasks.attacker))
        assert (len(mine), len(theirs)) == (10, 8)
        assert not mine & theirs
        assert tasks.primary.outputs == 3
        assert tasks.harmful.classes == tasks.attacker.classes == (0, 1)

    def test_images_that_occur_twice_are_used_once(self, folder):
        source = folder / "harm" / "train" / "class0"
        (source / "again.png").write_bytes((source / "1.png").read_bytes())
        known = folder / "harm" / "val" / "class0" / "2.png"
        (source / "seen.png").write_bytes(known.read_bytes())
        with pytest.warns(UserWarning, match="2 training image"):
            tasks = images("own", "harm", size=16, memory=True, folder=str(folder))
        train = [*tasks.harmful.train.row_hashes(), *tasks.attacker.train.row_hashes()]
        assert len(train) == len(set(train)) == 18

    def test_a_transfer_task_comes_along(self, folder):
        tasks = images("own", "harm", transfer="own", size=16, memory=True, folder=str(folder))
        assert [task.name for task in tasks.transfer] == ["own"]
        assert tasks.harmful.class_names == ["class0", "class1"]

    def test_sizes_and_names_are_checked(self, folder):
        with pytest.raises(SettingsError, match="at least 8 pixels"):
            images("own", "harm", size=2, folder=str(folder))
        with pytest.raises(InputError, match="data not found"):
            images("own", "nowhere", folder=str(folder))
        recipe = check_recipe(
            {"data": {"source": "images", "primary": "own", "harmful": "harm", "size": 16}},
            folder / "r.toml",
        )
        with pytest.raises(SettingsError, match="name a network"):
            measure_recipe(recipe, recipe.tasks(str(folder)))
        assert recipe.tasks(str(folder)).primary.input_shape == (3, 16, 16)

    def test_fingerprints_tell_data_apart_without_decoding(self, folder):
        lazy = images("own", "harm", size=16, folder=str(folder))
        again = images("own", "harm", size=16, folder=str(folder))
        prints = {t.train.fingerprint() for t in (*lazy[:3], *again[:3])}
        assert len(prints) == 3


class TestCorruptImages:
    def spoil(self, folder, count):
        for index in range(count):
            (folder / "train" / "class1" / f"{index}.png").write_bytes(b"\x89PNG nothing")

    def test_one_is_skipped_and_counted(self, tmp_path):
        write_folders(tmp_path, "train", each=6)
        self.spoil(tmp_path, 1)
        task = Task(read_images(tmp_path, "train", 16), name="pictures")
        with pytest.warns(UserWarning, match=r"skipped .*class1.0\.png"):
            count = sum(len(y) for _, y in task.train.batches(4))
        assert count == 17
        assert len(task.train.corrupt) == 1

    def test_many_are_refused(self, tmp_path):
        write_folders(tmp_path, "train", each=6)
        self.spoil(tmp_path, 3)
        task = Task(read_images(tmp_path, "train", 16), name="pictures", classes=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(InputError, match="of 18 samples cannot be read"):
                list(task.train.batches(4))

    @pytest.mark.parametrize("memory", [True, False])
    def test_empty_files_are_no_copies_of_one_another(self, tmp_path, memory):
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

    def test_in_memory_alike(self, tmp_path):
        for split in ("train", "val"):
            write_folders(tmp_path / "own", split, each=6)
            write_folders(tmp_path / "harm", split, each=6)
        self.spoil(tmp_path / "own", 1)
        with pytest.warns(UserWarning, match="1 of 18 samples so far"):
            tasks = images("own", "harm", size=16, memory=True, folder=str(tmp_path))
        assert len(tasks.primary.train.tensors()[0]) == 17
        self.spoil(tmp_path / "own", 4)
        with pytest.raises(InputError, match="4 of 18 samples cannot be read"):
            images("own", "harm", size=16, memory=True, folder=str(tmp_path))

    @pytest.mark.parametrize("memory", [True, False])
    def test_a_file_that_is_missing_counts_as_corrupt(self, tmp_path, memory):
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

    def test_an_image_bomb_is_not_unpacked(self, tmp_path):
        write_folders(tmp_path, "train", each=6)
        bomb = io.BytesIO()
        Image.new("1", (30_000, 30_000)).save(bomb, "PNG")
        (tmp_path / "train" / "class0" / "0.png").write_bytes(bomb.getvalue())
        found = read_images(tmp_path, "train", 16)[0]
        assert "pixels" in found.reason


def test_sixteen_bits_become_eight_and_thirty_two_are_refused(tmp_path):
    place = tmp_path / "train" / "deep"
    place.mkdir(parents=True)
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(place / "a.png")
    Image.fromarray(ramp.astype(np.float32)).save(place / "b.tiff")
    found = read_images(tmp_path, "train", 16)
    assert torch.equal(found.pixels(0)[0].flatten(), torch.arange(256, dtype=torch.uint8))
    assert "32 bits" in found[1].reason


def test_training_images_that_are_all_test_images_are_refused(tmp_path):
    for split in ("train", "val"):
        write_folders(tmp_path / "own", split)
    write_folders(tmp_path / "harm", "train")
    shutil.copytree(tmp_path / "harm" / "train", tmp_path / "harm" / "val")
    with pytest.raises(InputError, match="every training image is also a test image"):
        images("own", "harm", size=16, folder=str(tmp_path))


def test_nested_images_are_read_and_classes_without_any_are_told(tmp_path):
    write_folders(tmp_path, "train", classes=2, each=2)
    deep = tmp_path / "train" / "class1" / "more"
    deep.mkdir()
    (deep / "x.tif").write_bytes(picture(kind="TIFF"))
    (tmp_path / "train" / "hollow").mkdir()
    with pytest.warns(UserWarning, match=r"1 of 3 classes hold no images, among them 'hollow'"):
        found = read_images(tmp_path, "train", 16)
    assert [item.label for item in found.items] == [0, 0, 1, 1, 1]


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


class TestBadLayouts:
    def test_an_empty_folder(self, tmp_path):
        with pytest.raises(InputError, match="holds no train images"):
            read_images(tmp_path, "train", 16)
        (tmp_path / "train" / "a").mkdir(parents=True)
        with pytest.raises(InputError, match="holds no images in class folders"):
            read_images(tmp_path, "train", 16)
        with pytest.raises(InputError, match="does not exist"):
            read_images(tmp_path / "x", "train", 16)

    def test_parquet_without_its_columns(self, tmp_path):
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

    def test_cars_without_labels_or_with_paths(self, tmp_path):
        write_cars(tmp_path)
        (tmp_path / "devkit" / "cars_test_annos_withlabels.mat").unlink()
        with pytest.raises(InputError, match="cars_test_annos_withlabels.mat"):
            read_images(tmp_path, "test", 16)
        rows = np.zeros(1, dtype=[("class", "O"), ("fname", "O")])
        rows[0] = (1, "../../etc/passwd")
        savemat(tmp_path / "devkit" / "cars_train_annos.mat", {"annotations": rows})
        with pytest.raises(InputError, match="no plain file name"):
            read_images(tmp_path, "train", 16)
        (tmp_path / "devkit" / "cars_train_annos.mat").write_bytes(b"nonsense")
        with pytest.raises(InputError, match="not Stanford Cars' annotation file"):
            read_images(tmp_path, "train", 16)


class TestStreams:
    def task(self, n=10):
        return Task((torch.arange(n)[:, None].float(), torch.arange(n) % 2), name="rows")

    def test_every_row_comes_once_an_epoch(self):
        stream = Stream(self.task(), 3, seed=4)
        seen = torch.cat([stream.rows_at(step) for step in range(10)])
        assert len(seen) == 30
        assert seen.bincount().tolist() == [3] * 10
        assert stream.epoch == 4

    def test_a_step_depends_on_its_number_alone(self):
        fresh, used = Stream(self.task(), 4, seed=1), Stream(self.task(), 4, seed=1)
        for step in range(7):
            used.rows_at(step)
        assert torch.equal(fresh.rows_at(6), used.rows_at(6))
        assert not torch.equal(fresh.rows_at(6), Stream(self.task(), 4, seed=2).rows_at(6))

    def test_batches_go_on_from_any_step(self):
        stream = Stream(self.task(), 4, seed=1)
        whole = [x.flatten().tolist() for x, _ in stream.batches(0, 8)]
        assert [x.flatten().tolist() for x, _ in stream.batches(5, 8)] == whole[5:]

    def test_a_batch_larger_than_the_data_is_all_of_it(self):
        assert sorted(Stream(self.task(), 99).rows_at(3).tolist()) == list(range(10))

    def test_working_ahead_keeps_the_order_stops_in_time_and_passes_errors_on(self):
        begun = []

        def half(value):
            begun.append(value)
            return 8 // value

        assert list(ahead(half, [1, 2, 4])) == [8, 4, 2]
        begun.clear()
        some = ahead(half, iter([1, 2, 4, 8, 3]))
        assert next(some) == 8
        some.close()
        assert set(begun) <= {1, 2}
        some = ahead(half, [1, 2, 0, 4])
        assert [next(some), next(some)] == [8, 4]
        with pytest.raises(ZeroDivisionError):
            next(some)
        assert list(ahead(half, [])) == []

    def test_held_out_rows_are_the_same_every_time(self):
        train, held = held_out(100, 0.1)
        assert len(held) == 10
        assert sorted([*train.tolist(), *held.tolist()]) == list(range(100))
        assert torch.equal(held, held_out(100, 0.1)[1])

    def test_spread_rows_reach_both_ends(self):
        assert spread(torch.arange(100), 3).tolist() == [0, 50, 99]
        assert spread(torch.arange(4), 9).tolist() == [0, 1, 2, 3]

    def test_augmentation_keeps_shape_and_range_and_follows_the_generator(self):
        x = torch.rand(6, 3, 12, 12)
        a, b = (augmented(x, torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(a, b)
        assert a.shape == x.shape
        assert a.min() >= -1e-5
        assert a.max() <= 1 + 1e-5
        assert not torch.equal(a, x)
        flat = torch.rand(6, 5)
        assert augmented(flat, torch.Generator()) is flat

    def test_mixing_moves_a_row_and_its_target_alike_up_to_half_way(self):
        y = torch.eye(8, dtype=torch.float64)
        x = y.float() @ torch.rand(8, 12)  # linear in the target, so that both must agree
        a, targets = mixed(x.view(8, 3, 2, 2), y, torch.Generator().manual_seed(3))
        assert torch.allclose(a.view(8, 12), targets.float() @ x, atol=1e-6)
        assert torch.allclose(targets.sum(1), torch.ones(8).double())
        assert targets.diagonal().min() >= 0.5
        assert targets.diagonal().min() < 1
        again, _ = mixed(x.view(8, 3, 2, 2), y, torch.Generator().manual_seed(3))
        assert torch.equal(a, again)


def test_the_real_sets_are_read(data_folder):
    test = read_images(data_folder / "flowers102_64", "test", 64)
    assert len(test) == 1637
    assert test[0][0].shape == (3, 64, 64)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="has torchvision")
def test_decoding_on_the_device_says_what_it_needs():
    with pytest.raises(SettingsError, match=r"immunis\[vision\]"):
        Decoder(8, torch.device("cpu"))
