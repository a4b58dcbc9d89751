"""Decoding on the device: what torchvision gives is what Pillow gives, and nothing is lost."""

import io
import warnings
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("torchvision")

from helpers.images import write_folders
from immunis import SettingsError, Task
from immunis.data.loader import Stream
from immunis.data.sources import gpu_decode
from immunis.data.sources.decode import decode
from immunis.data.sources.gpu_decode import Decoder, Encoded, packed, shown
from immunis.data.sources.image_dataset import Images, Item
from immunis.data.sources.image_folders import images
from immunis.data.split import Corrupt

SIZE, CPU = 32, torch.device("cpu")


def smooth(seed, shape, mode="RGB"):
    """An image without sharp edges, which decoders would show in ways of their own."""
    blocks = np.random.default_rng(seed).integers(40, 215, (4, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(blocks).resize(shape, Image.Resampling.BICUBIC)
    return picture.convert(mode)


def stored(picture, kind="JPEG"):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


SHAPES = {"wide": (60, 40), "tall": (40, 61), "equal": (SIZE, SIZE), "small": (20, 24)}
CONTENTS = {
    **{name: stored(smooth(seed, shape)) for seed, (name, shape) in enumerate(SHAPES.items())},
    "again": stored(smooth(7, SHAPES["wide"])),
    "grey": stored(smooth(8, (50, 44), "L")),
    "ink": stored(smooth(9, (50, 44), "CMYK")),
    "png": stored(smooth(10, (50, 44)), "PNG"),
}


def broken(name, where):
    """A JPEG with a piece of it overwritten: its end is in place."""
    content = bytearray(CONTENTS[name])
    content[where : where + 4] = b"\xff\xc0\xff\xff"
    return bytes(content)


def data(contents):
    items = [Item(content, row % 3, name) for row, (name, content) in enumerate(contents.items())]
    return Images(items, SIZE)


def unpacked(contents):
    encoded = Encoded(data(contents))
    return Decoder(SIZE, CPU)(packed([encoded[row] for row in range(len(encoded))]))


def test_pixels_are_pillows_but_for_a_few_levels():
    (pixels, labels), bad = unpacked(CONTENTS)
    assert not bad and labels.tolist() == [row % 3 for row in range(len(CONTENTS))]
    assert pixels.dtype == torch.uint8
    for (name, content), found in zip(CONTENTS.items(), pixels, strict=True):
        apart = (found.int() - decode(content, SIZE).int()).abs().float()
        assert apart.mean() < 2.5, name
        if name in ("ink", "png"):  # which workers decode
            assert apart.max() == 0


@pytest.mark.parametrize("where", [3, 20])
def test_what_spoils_a_batch_is_named_and_the_rest_stays(where):
    contents = {**CONTENTS, "broken": broken("wide", where), "last": CONTENTS["tall"]}
    (pixels, labels), bad = unpacked(contents)
    assert [item.name for item in bad] == ["broken"]
    assert len(pixels) == len(labels) == len(contents) - 1
    assert labels[-1] == (len(contents) - 1) % 3
    assert torch.equal(pixels[-1], pixels[1])


def test_files_cut_short_or_gone_are_corrupt(tmp_path):
    short = {"short": CONTENTS["wide"][:-40], "empty": b"", "text": b"no image"}
    found, bad = unpacked(short)
    assert found is None
    assert [item.name for item in bad] == list(short)
    missing = Images([Item(tmp_path / "gone.jpg", 0, "gone")], SIZE)
    assert isinstance(Encoded(missing)[0], Corrupt)


def test_large_images_are_decoded_a_few_at_a_time(monkeypatch):
    at_once = unpacked(CONTENTS)[0]
    seen = []
    show = Decoder._images
    monkeypatch.setattr(
        Decoder, "_images", lambda self, some: seen.append(len(some)) or show(self, some)
    )
    monkeypatch.setattr(gpu_decode, "AT_ONCE", 5000)
    assert all(map(torch.equal, unpacked(CONTENTS)[0], at_once))
    assert sum(seen) == len(CONTENTS) - 2
    assert len(seen) > 2 and all(seen)


def test_a_fault_of_the_device_is_no_fault_of_the_images(monkeypatch):
    decoder = Decoder(SIZE, CPU)
    encoded = Encoded(data(CONTENTS))
    parcel = packed([encoded[row] for row in range(4)])
    for fault in (torch.OutOfMemoryError("full"), RuntimeError("CUDA error: gone")):
        monkeypatch.setattr(decoder, "_decode", Mock(side_effect=fault))
        with pytest.raises(type(fault), match=str(fault)):
            decoder(parcel)
    monkeypatch.setattr("torchvision.io.decode_jpeg", Mock(side_effect=RuntimeError("no nvJPEG")))
    with pytest.raises(SettingsError, match="no nvJPEG.*decode = 'cpu'"):
        Decoder(SIZE, CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_pillow_gives():
    contents = {**CONTENTS, "broken": broken("wide", 20), "last": CONTENTS["tall"]}
    plain = data({f"{turn} {name}": c for turn in range(9) for name, c in contents.items()})
    plain.items = [item for item in plain.items if "broken" not in item.name or item.name[0] == "0"]
    streams = [
        Stream(Task(part, name="pictures", classes=3), 16, workers=2, device="cuda")
        for part in (plain, replace(plain, on_device=True))
    ]
    with pytest.warns(UserWarning, match="skipped 0 broken"):
        both = [list(stream.batches(0, 9)) for stream in streams]
    for ours, theirs in zip(*both, strict=True):
        assert torch.equal(ours[1], theirs[1]) and theirs[0].is_cuda
        assert (ours[0] - theirs[0]).abs().mean() < 0.05


def test_the_centre_is_shown():
    picture = torch.zeros(1, 3, 10, 20, dtype=torch.uint8)
    picture[..., 5:15] = 200
    assert (shown(picture, 5) == 200).all()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Streams that decode on their device, which is the CPU."""
    sent = Images.for_device

    def gpu(source):
        return source.on_device and (Encoded(source), {"collate_fn": packed}, Decoder(SIZE, CPU))

    monkeypatch.setattr(Images, "for_device", lambda self, device: gpu(self) or sent(self, device))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_gives_the_same_rows(as_on_a_gpu, workers):
    plain = data({f"{name} {turn}": c for turn in range(3) for name, c in CONTENTS.items()})
    streams = [
        Stream(Task(part, name="pictures", classes=3), 8, workers=workers)
        for part in (plain, replace(plain, on_device=True))
    ]
    for ours, theirs in zip(*(stream.batches(0, 5) for stream in streams), strict=True):
        assert torch.equal(ours[1], theirs[1])
        assert (ours[0] - theirs[0]).abs().mean() < 0.05
    assert len(list(zip(streams[1].batches(0, 9), range(2), strict=False))) == 2  # left early


def test_what_is_skipped_is_said_and_counted(as_on_a_gpu):
    contents = {f"{name} {turn}": c for turn in range(40) for name, c in CONTENTS.items()}
    contents |= {f"broken {turn}": broken("wide", 20) for turn in range(3)}
    task = Task(replace(data(contents), on_device=True), name="pictures", classes=3)
    with pytest.warns(UserWarning, match="skipped broken") as said:
        rows = sum(len(labels) for _, labels in Stream(task, 16).batches(0, len(contents) // 16))
    assert sum("skipped" in str(warning.message) for warning in said) == len(task.train.corrupt)
    assert rows == len(contents) // 16 * 16 - len(task.train.corrupt)


def test_settings_say_where(tmp_path):
    for name in ("primary", "harmful"):
        for split in ("train", "test"):
            write_folders(tmp_path / name, split)
    given = {"primary": "primary", "harmful": "harmful", "size": 8, "folder": str(tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random pictures of test data occur in training data
        tasks = images(**given, decode="device")
    assert tasks.harmful.train.source.on_device and tasks.primary.test.source.on_device
    assert len(next(Stream(tasks.primary, 4).batches(0, 1))[0]) == 4  # on a CPU as ever
    assert tasks.primary.train.fingerprint() != images(**given).primary.train.fingerprint()
    with pytest.raises(SettingsError, match="'gpu': expected 'cpu' or 'device'"):
        images(**given, decode="gpu")
    for other in ("memory", "cache"):
        with pytest.raises(SettingsError, match="decode"):
            images(**given, decode="device", **{other: True})
