"""Decoded images, and pixels kept on disk: equal to decoded ones, never trusted unchecked."""

import importlib.util
import io
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from immunis import InputError, SettingsError
from immunis.data.sources import image_dataset
from immunis.data.sources.gpu_decode import Decoder
from immunis.data.sources.image_dataset import Images, Item
from immunis.data.sources.image_layouts import read_images
from immunis.data.split import Corrupt

SIZE, ROW = 8, 4 + 3 * 8 * 8


def encoded(seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (12, 10, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "pictures").mkdir()
    items = []
    for index in range(6):
        path = tmp_path / "pictures" / f"{index}.png"
        path.write_bytes(encoded(index))
        items.append(Item(path, index % 2, str(path)))
    return Images(items, SIZE)


@pytest.fixture
def decodes(monkeypatch):
    """One entry for each image that is decoded."""
    seen, decode = [], image_dataset.decode
    monkeypatch.setattr(image_dataset, "decode", lambda *a: (seen.append(1), decode(*a))[1])
    return seen


def read(data):
    return torch.stack([data[index][0] for index in range(len(data))])


def failing(which, error):
    """Return ``Path.open`` that fails for the cache's file in one mode."""
    opened = Path.open

    def opens(path, mode="r", *more, **options):
        if mode == which and path.suffix == ".bin":
            raise error
        return opened(path, mode, *more, **options)

    return opens


def file_of(folder):
    (found,) = folder.iterdir()
    return found


def test_pixels_are_cropped_at_the_centre_and_normalised(tmp_path):
    pixels = np.zeros((8, 12, 3), dtype=np.uint8)
    pixels[:, 2:10] = 255
    (tmp_path / "train" / "a").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "train" / "a" / "x.png")
    x, _ = read_images(tmp_path, "train", 8)[0]
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(x, white[:, None, None].expand(3, 8, 8), atol=1e-5)


def test_sixteen_bits_become_eight_and_thirty_two_are_refused(tmp_path):
    place = tmp_path / "train" / "deep"
    place.mkdir(parents=True)
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(place / "a.png")
    Image.fromarray(ramp.astype(np.float32)).save(place / "b.tiff")
    found = read_images(tmp_path, "train", 16)
    assert torch.equal(found.pixels(0)[0].flatten(), torch.arange(256, dtype=torch.uint8))
    assert "32 bits" in found[1].reason


def test_an_image_is_decoded_once(plain, tmp_path, decodes):
    expected = read(plain)
    decodes.clear()
    for again in range(2):  # the second as another run would: a new object, the same folder
        data = plain.cached(tmp_path / "kept")
        assert torch.equal(read(data), expected)
        assert torch.equal(read(replace(data, raw=True)), read(replace(plain, raw=True)))
        assert len(decodes) == 12 * (again + 1) - 6 * again  # plain decodes six each time
    assert file_of(tmp_path / "kept").stat().st_size == 6 * ROW


def test_a_part_of_the_images_shares_the_file(plain, tmp_path, decodes):
    whole = plain.cached(tmp_path / "kept")
    expected = read(whole)
    decodes.clear()
    assert torch.equal(
        read(replace(whole, items=[whole.items[i] for i in (4, 1)])), expected[[4, 1]]
    )
    assert not decodes


@pytest.mark.parametrize("where", [0, 3, 4, ROW - 1])
def test_a_damaged_row_is_decoded_again(plain, tmp_path, decodes, where):
    data = plain.cached(tmp_path / "kept")
    expected = read(data)
    path = file_of(tmp_path / "kept")
    with path.open("r+b") as file:
        file.seek(2 * ROW + where)
        byte = file.read(1)[0]
        file.seek(2 * ROW + where)
        file.write(bytes([byte ^ 1]))
    decodes.clear()
    assert torch.equal(read(data), expected)
    assert len(decodes) == 1
    assert torch.equal(read(data), expected)
    assert len(decodes) == 1  # and mended


def test_a_truncated_file_is_filled_again(plain, tmp_path):
    expected = read(plain.cached(tmp_path / "kept"))
    os.truncate(file_of(tmp_path / "kept"), 3 * ROW + 7)
    assert torch.equal(read(plain.cached(tmp_path / "kept")), expected)


def test_a_changed_image_is_seen(plain, tmp_path):
    read(plain.cached(tmp_path / "kept"))
    path = plain.items[3].source
    path.write_bytes(encoded(77))
    os.utime(path, ns=(1, 1))  # whatever the clock's grain
    assert torch.equal(read(plain.cached(tmp_path / "kept")), read(plain))
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_another_size_has_another_file(plain, tmp_path):
    read(plain.cached(tmp_path / "kept"))
    assert read(Images(plain.items, 10).cached(tmp_path / "kept")).shape[-1] == 10


def test_an_image_that_cannot_be_read_is_not_kept(plain, tmp_path):
    plain.items[1].source.write_bytes(b"nothing")
    data = plain.cached(tmp_path / "kept")
    assert [isinstance(data[1], Corrupt) for _ in range(2)] == [True, True]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_fill_it_together(plain, tmp_path, context):
    data = plain.cached(tmp_path / "kept")
    loader = DataLoader(data, 2, num_workers=2, multiprocessing_context=context)
    assert torch.equal(torch.cat([x for x, _ in loader]), read(plain))
    assert not any(data.cache.read(item) is None for item in data.items)


def test_a_cache_can_be_pickled(plain, tmp_path):
    data = plain.cached(tmp_path / "kept")
    read(data)
    assert torch.equal(read(pickle.loads(pickle.dumps(data))), read(plain))


@pytest.mark.parametrize("mode", ["rb", "r+b"])
def test_where_the_disk_fails_decoding_goes_on(plain, tmp_path, monkeypatch, mode):
    data = plain.cached(tmp_path / "kept")
    monkeypatch.setattr(Path, "open", failing(mode, OSError(5, "Input/output error")))
    with pytest.warns(UserWarning, match="Input/output error") as warned:
        assert torch.equal(read(data), read(plain))
    assert len(warned) == 1


def test_a_cache_that_may_only_be_read_is_read(plain, tmp_path, monkeypatch, decodes):
    expected = read(plain.cached(tmp_path / "kept"))
    monkeypatch.setattr(Path, "open", failing("r+b", PermissionError(13, "Permission denied")))
    decodes.clear()
    assert torch.equal(read(plain.cached(tmp_path / "kept")), expected)
    assert not decodes


def test_images_of_the_same_names_elsewhere_have_a_file_of_their_own(tmp_path, monkeypatch):
    found = []
    for index, place in enumerate(("here", "there")):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        path = Path("x.bmp")  # of one length whatever it shows
        Image.new("RGB", (9, 9), (50 * index, 0, 0)).save(path)
        os.utime(path, ns=(1, 1))
        found.append(Images([Item(path, 0, str(path))], SIZE).cached(tmp_path / "kept")[0][0])
    assert not torch.equal(*found)


def test_a_size_that_no_disk_holds_is_refused(plain, tmp_path):
    with pytest.raises(InputError, match="pixel cache .* cannot be made"):
        Images(plain.items, 10**9).cached(tmp_path / "kept")


def test_a_folder_that_cannot_be_one_is_refused(plain, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="pixel cache .* cannot be made"):
        plain.cached(tmp_path / "file" / "kept")


def test_two_images_of_one_name_are_kept_apart(tmp_path):
    items = [Item(encoded(i), 0, "same") for i in range(2)]
    data = Images(items, SIZE).cached(tmp_path)
    for _ in range(2):
        assert torch.equal(read(data), read(Images(items, SIZE)))


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="has torchvision")
def test_decoding_on_the_device_says_what_it_needs():
    with pytest.raises(SettingsError, match=r"immunis\[vision\]"):
        Decoder(8, torch.device("cpu"))
