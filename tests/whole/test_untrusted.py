"""Untrusted input: other people's weights, data, recipes and records end in a clear refusal."""

import contextlib
import gzip
import io
import json
import os
import re
import resource
import shutil
import socket
import struct
import sys
import time
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from helpers import faulty
from helpers.images import write_folders
from immunis import InputError, OutputError, Record, SettingsError
from immunis.cli import main as cli
from immunis.core.files import check_unpacked, sealed
from immunis.core.jobs import Job, Run, sweep
from immunis.core.locks import hold
from immunis.core.releases import release, settle
from immunis.data.sources import mnist_images, npz
from immunis.data.sources.gpu_decode import Encoded
from immunis.data.sources.image_dataset import Images, Item
from immunis.data.sources.image_layouts import read_images
from immunis.data.split import Corrupt
from immunis.models import text as text_models
from immunis.models.pretrained import shown_as
from immunis.models.weights import load_weights, read_tensors
from immunis.models.zoo import named_network, weights_only
from immunis.recipes import load_recipe
from immunis.report.about import About
from immunis.report.card import render
from immunis.training import checkpoint as checkpoints

SOURCE = Path(cli.__file__).parents[1]


class Evil:
    """An object whose unpickling writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_nothing_in_the_source_unpickles_or_evaluates():
    calls = {
        r"\bpickle\.(?!UnpicklingError)": "",
        r"\b(joblib|dill|cloudpickle|marshal|shelve)\.loads?\(": "",
        r"\btorch\.load\(": "weights_only=True",
        r"\bnp\.load\(": "allow_pickle=False",
        r"\byaml\.|(?<![\w.])(eval|exec|compile|__import__)\(": "",
        r"\bImage\.open\(": "formats=",
        r"os\.system|shell=True|trust_remote_code=True": "",
    }
    for path in SOURCE.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            for call, needed in calls.items():
                if re.search(call, line):
                    assert needed and needed in line, f"{path}: {line.strip()}"


@pytest.mark.parametrize("kind", ["state", "checkpoint", "npz", "job", "safetensors", "library"])
def test_a_malicious_pickle_is_refused_and_never_run(tmp_path, kind):
    evil, ran = Evil(tmp_path / "ran"), tmp_path / "ran"
    buffer = io.BytesIO()
    torch.save({"format": checkpoints.FORMAT, "weight": evil}, buffer)
    raw, path = buffer.getvalue(), tmp_path / f"{kind}.pt"
    if kind == "state":
        path.write_bytes(raw)
        with pytest.raises(InputError, match=r"state\.pt cannot be read"):
            load_weights(torch.nn.Linear(1, 1), path)
    elif kind == "checkpoint":
        path.write_bytes(checkpoints.head_of(raw) + raw)
        with pytest.raises(InputError, match=r"checkpoint\.pt cannot be read"):
            checkpoints.read(path)
    elif kind == "npz":
        np.savez(tmp_path / "e.npz", x_train=np.array([evil], object), y_train=[0])
        with pytest.raises(InputError, match=r"e\.npz is not a plain \.npz"):
            npz("e.npz", "e.npz", folder=str(tmp_path))
    elif kind == "job":
        (tmp_path / "a.json").write_bytes(raw)
        with pytest.warns(UserWarning, match=r"a\.json is not JSON.*runs again"):
            sweep({"a": Job(faulty.square, (2,))}, Run(folder=tmp_path))
    elif kind == "safetensors":
        (tmp_path / "e.safetensors").write_bytes(raw)
        with pytest.raises(InputError, match="not a safetensors file"):
            load_weights(torch.nn.Linear(1, 1), tmp_path / "e.safetensors")
    else:  # a library that asks for unpickling does not get it
        path.write_bytes(raw)
        with weights_only(), pytest.raises(Exception, match="[Ww]eights only"):
            torch.load(path, weights_only=False)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("length", "head"),
    [
        (1 << 60, "{}"),
        (80, '{"w":{"dtype":"F32","shape":[9999999,9999999],"data_offsets":[0,4]}}'),
        (80, '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999]}}'),
        (80, "[" * 80),
    ],
    ids=["length", "shape", "offsets", "depth"],
)
def test_safetensors_with_a_lying_header_is_refused(tmp_path, length, head):
    content = struct.pack("<Q", length) + head.ljust(80).encode() + bytes(4)
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="not a safetensors file"):
        load_weights(torch.nn.Linear(1, 1), tmp_path / "w.safetensors")


def recipe(folder, text):
    (folder / "r.toml").write_text(text)
    return load_recipe(folder / "r.toml")


def test_ghostscript_never_runs(monkeypatch):
    from PIL import EpsImagePlugin

    ran = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: ran.append(1))
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20)).save(buffer, "EPS")
    image = Item(buffer.getvalue() + b"\xff\xd9", 0, "innocent.jpg")  # ends as a JPEG does
    one = Images([image], 8)
    assert isinstance(one.pixels(0), Corrupt)
    assert isinstance(Encoded(one)[0], Corrupt)
    assert not ran


def test_an_annotation_that_names_a_file_elsewhere_is_refused(tmp_path):
    from scipy.io import savemat

    kind = [("fname", object), ("class", float)]
    rows = np.array([("../../etc/passwd", 1.0), ("b.jpg", 2.0)], dtype=kind)
    (tmp_path / "devkit").mkdir()
    savemat(tmp_path / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    with pytest.raises(InputError, match=r"plain file names, got '../../etc/passwd'"):
        read_images(tmp_path, "train", 8)


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_path": "evil"},
        {"trust_remote_code": True},
        {"pretrained_cfg": {"file": "evil.pth"}},
        {"pretrained_cfg_overlay": "x"},
        {"weights_backbone": "DEFAULT"},
        {"act_layer": "os.system"},
        {"anything": ["ok", "../../x"]},
        {"anything": {"nested": 1}},
    ],
)
@pytest.mark.parametrize("library", ["timm", "torchvision", "transformers"])
def test_options_that_load_or_run_files_are_refused(library, options):
    with pytest.raises(SettingsError, match="refused.*must not load or run"):
        named_network(library, "resnet18", 2, options=options)


def test_a_packed_bomb_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("immunis.core.files.MOST_BYTES", 1 << 20)
    monkeypatch.setattr(sys.modules[mnist_images.__module__], "MOST", 1 << 20)
    monkeypatch.setattr("immunis.data.sources.image_layouts.MOST_MAT", 1 << 20)
    zeros = np.zeros(1 << 24, np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", x_train=zeros, y_train=[0])
    with pytest.raises(InputError, match="unpacks to .* bytes or more"):
        npz("bomb.npz", "bomb.npz", folder=str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        head = b"\x00\x00\x08\x01" + struct.pack(">I", 1 << 24)
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(gzip.compress(head + zeros.tobytes()))
    with pytest.raises(InputError, match="no MNIST file does"):
        mnist_images(folder=tmp_path)
    packed = zlib.compress(zeros.tobytes())
    mat = b" " * 124 + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed
    (tmp_path / "cars_train_annos.mat").write_bytes(mat)
    with pytest.raises(InputError, match="no such devkit does"):
        read_images(tmp_path, "train", 8)


def test_arrays_that_lie_about_their_size_are_refused(tmp_path):
    head = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 1 << 10)}
    np.lib.format.write_array_header_1_0(head, shape)
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("x_train.npy", head.getvalue() + bytes(16))
    with pytest.raises(InputError, match="claims .* bytes and holds 16"):
        npz("lie.npz", "lie.npz", folder=str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for shape in ((1 << 31, 28, 28), (2**32 - 1, 2**32 - 784, 1), (1,) * 200):
        raw = b"\x00\x00\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(raw + bytes(784))
        with pytest.raises(InputError, match="is truncated|not an idx file"):
            mnist_images(folder=tmp_path)


def parquet(path, rows, content=b"x"):
    table = pyarrow.table({"image": [content] * rows, "label": [0] * rows})
    pyarrow.parquet.write_table(table, path)


def test_a_parquet_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("immunis.core.files.MOST_BYTES", 1 << 20)
    parquet(tmp_path / "train.parquet", 5000, bytes(10_000))  # one value, 5,000 times over
    assert (tmp_path / "train.parquet").stat().st_size < 100_000
    with pytest.raises(InputError, match=r"train\.parquet unpacks to .* bytes or more"):
        read_images(tmp_path, "train", 8)


@pytest.mark.parametrize("form", ["dictionary", "nested", "path"])
def test_a_parquet_whose_rows_share_a_value_is_refused(tmp_path, monkeypatch, form):
    monkeypatch.setattr("immunis.core.files.MOST_BYTES", 1 << 20)
    rows, big = 300, pyarrow.array([bytes(10_000)])
    images = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), big)
    if form == "nested":
        images = pyarrow.StructArray.from_arrays([images], ["bytes"])
    elif form == "path":  # a column that is not needed is not read
        small = pyarrow.array([b"x"] * rows)
        images = pyarrow.StructArray.from_arrays([small, images], ["bytes", "path"])
    table = pyarrow.table({"image": images, "label": [0] * rows})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    if form == "path":
        assert len(read_images(tmp_path, "train", 8)) == rows
    else:
        with pytest.raises(InputError, match="lacks column image; it has image .*dictionary"):
            read_images(tmp_path, "train", 8)


def test_large_rows_of_a_parquet_are_not_unpacked_together(tmp_path, monkeypatch):
    monkeypatch.setattr("immunis.core.files.MOST_BYTES", 1 << 20)
    parquet(tmp_path / "train.parquet", 64, bytes(1 << 20))
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(pyarrow.system_memory_pool())
    pyarrow.set_memory_pool(pool)
    try:
        with pytest.raises(InputError, match=r"train\.parquet unpacks to .* bytes or more"):
            read_images(tmp_path, "train", 8)
    finally:
        pyarrow.set_memory_pool(before)
    assert 1 << 20 < pool.max_memory() < 1 << 24


@pytest.mark.parametrize("kind", ["state", "checkpoint"])
def test_a_packed_pytorch_file_is_refused_before_it_is_unpacked(tmp_path, kind):
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"weight": torch.zeros(1 << 20)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    raw, path = packed.getvalue(), tmp_path / "bomb.pt"
    assert len(raw) < 50_000
    path.write_bytes(raw if kind == "state" else checkpoints.head_of(raw) + raw)
    with pytest.raises(InputError, match=r"bomb\.pt cannot be read: its entries are packed"):
        load_weights(torch.nn.Linear(1, 1), path) if kind == "state" else checkpoints.read(path)


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (torch.tensor([[float("nan")]]), "weight holds NaN"),
        (torch.tensor([[float("inf")]]), "weight holds NaN or inf"),
        (torch.tensor([[1e300]], dtype=torch.float64), "infinities in torch.float32"),
        (torch.tensor([[1 + 2j]]), "weight is torch.complex64; expected float16"),
    ],
)
def test_weights_that_are_no_numbers_are_refused_and_the_model_kept(tmp_path, weight, says):
    model = torch.nn.Linear(1, 1)
    before = model.weight.clone()
    torch.save({"weight": weight, "bias": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=says):
        load_weights(model, tmp_path / "w.pt")
    assert model.weight.equal(before)
    torch.save({"weight": torch.ones(1, 1).double(), "bias": torch.zeros(1)}, tmp_path / "w.pt")
    load_weights(model, tmp_path / "w.pt")


def test_control_characters_in_names_are_written_out(tmp_path, monkeypatch, capfd):
    evil = "a\x1b[31mRED\x1b]0;pwn\x07\x9b2J\u202e.npz"
    faulty.write_recipes(tmp_path, 0)
    (tmp_path / "p.npz").rename(tmp_path / evil)
    text = (tmp_path / "linear.toml").read_text().replace("'p.npz'", json.dumps(evil))
    (tmp_path / "linear.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for command in (["immunize", "linear.toml", "-o", "out"], ["measure", "linear.toml", "-v"]):
        monkeypatch.setattr(sys, "argv", ["immunis", *command])
        with contextlib.suppress(SystemExit):
            cli.main()
    (tmp_path / evil).unlink()
    with contextlib.suppress(SystemExit):
        cli.main()
    told = capfd.readouterr()
    made = [path.read_text() for path in (tmp_path / "out").glob("*.[hjm][tsd]*")]
    assert len(made) >= 4 and any(r"\x1b[31mRED" in text for text in made)
    assert r"\x1b[31mRED" in told.err  # the error names the file that is gone
    for text in (told.out, told.err, *made):
        assert not any(character in text for character in "\x07\x9b\u202e")
        assert "\x1b]0" not in text and "\x1b[31mRED" not in text


def test_a_parquet_with_lying_sizes_is_refused_or_read(tmp_path):
    parquet(tmp_path / "good.parquet", 100, bytes(300))
    good = (tmp_path / "good.parquet").read_bytes()
    length = struct.unpack("<I", good[-8:-4])[0]
    refused = 0
    for place in [*range(4, 60, 3), *range(len(good) - 8 - length, len(good) - 4, 5)]:
        bad = bytearray(good)
        bad[place] ^= 0x7F  # sizes, counts and offsets are varints: a byte makes them huge
        (tmp_path / "train.parquet").write_bytes(bad)
        try:
            assert len(read_images(tmp_path, "train", 8)) <= 100
        except InputError as error:
            refused += "train.parquet" in str(error)
    assert refused > 20
    (tmp_path / "train.parquet").write_bytes(good[:-8] + struct.pack("<I", 1 << 31) + b"PAR1")
    with pytest.raises(InputError, match="not a readable parquet file"):
        read_images(tmp_path, "train", 8)


def png_of(width, height):
    """A PNG whose header claims a size, with hardly any pixels behind it."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [8200, 12_000, 60_000])
def test_an_image_bomb_is_refused(tmp_path, side):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "bomb.png").write_bytes(png_of(side, side))
    found = read_images(tmp_path, "train", 8)[0]
    assert re.search(r"pixels; at most|DecompressionBomb", found.reason)


def test_markup_in_names_stays_text(tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    source = SOURCE.parents[1] / "results" / "audit-digit-parity.json"
    text = source.read_text().replace("erase", "<script>alert(1)</script>")
    values = {**json.loads(text), "name": evil}
    values.pop("checksum", None)
    (tmp_path / "r.json").write_text(sealed(values))
    page = render(Record.load(tmp_path / "r.json"))
    assert "alert(1)" in page
    assert "<script>alert" not in page and "<img src=x" not in page


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kind": "x", "name": "y", "figures": {}, "schema": 2}', "schema 2; this .* Upgrade"),
        ('{"kind": "x", "name": "y", "figures": {}, "schema": true}', "schema True; this"),
        ('{"kind": "x", "name": "y", "schema": 1, "figures": ' + "[" * 100_000, "not JSON"),
        (
            '{"kind": "x", "name": "y", "schema": 1, "figures": ' + "[" * 700 + "]" * 700 + "}",
            "deeper",
        ),
        (
            '{"kind": "x", "schema": 1, "figures": ' + '{"a":' * 101 + "1" + "}" * 102,
            "deeper than 100",
        ),
        ('{"kind": "x", "name": "y", "figures": {}, "schema": ' + "9" * 10_000 + "}", "not JSON"),
    ],
    ids=["newer", "truth", "deep", "lists", "objects", "digits"],
)
def test_records_that_cannot_be_read_are_refused(tmp_path, text, says):
    with contextlib.suppress(ValueError, RecursionError):
        text = sealed(json.loads(text))
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InputError, match=says):
        Record.load(tmp_path / "r.json")


def test_an_expanded_tensor_is_refused_before_it_fills_the_memory(tmp_path):
    torch.save({"weight": torch.zeros(1).expand(1 << 33)}, tmp_path / "w.pt")  # 32 GB of zeros
    assert (tmp_path / "w.pt").stat().st_size < 2000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="belong to another model: .*size mismatch"):
        load_weights(torch.nn.Linear(4, 4, bias=False), tmp_path / "w.pt")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in kB
    assert grown < 100_000


@pytest.mark.parametrize("form", ["small", "padded", "shards"])
def test_a_parquet_with_more_rows_than_it_has_room_for_is_refused_at_once(tmp_path, form):
    rows = 9_999 if form == "shards" else 300_000 if form == "padded" else 3_000_000
    column = pyarrow.array([b""] * rows, pyarrow.binary())
    table = pyarrow.table({"image": column, "label": np.zeros(rows, np.int64)})
    if form == "padded":
        table = table.replace_schema_metadata({"padding": "x" * (64 * rows)})
    (tmp_path / "data").mkdir()
    name = "data/train-0.parquet" if form == "shards" else "train.parquet"
    pyarrow.parquet.write_table(table, tmp_path / name, compression="zstd")
    for shard in range(1, 9 if form == "shards" else 0):
        shutil.copy(tmp_path / name, tmp_path / f"data/train-{shard}.parquet")
    began = time.process_time()
    with pytest.raises(InputError, match="more rows than there are images"):
        read_images(tmp_path, "train", 8)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.uint8, torch.uint16, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_weights_that_are_no_common_floats_are_refused(tmp_path, dtype):
    save_file({"weight": torch.ones(64, 64).to(dtype)}, tmp_path / "w.safetensors")
    model = torch.nn.Linear(64, 64, bias=False)
    with pytest.raises(InputError, match=rf"^weights .*: weight is {dtype}; expected"):
        load_weights(model, tmp_path / "w.safetensors")
    one = recipe(tmp_path, f"{DIGITS}[model]\nweights = 'w.safetensors'")
    with pytest.raises(InputError, match=rf"^weights .*: weight is {dtype}; expected"):
        one.extractor(one.tasks().primary)


def test_names_that_are_not_utf_8_make_no_traceback(tmp_path, monkeypatch, capfd):
    odd = os.fsdecode(b"caf\xe9")
    base = tmp_path / odd
    for split in ("train", "test"):
        write_folders(base / "own", split)
        (base / "own" / split / "class0").rename(base / "own" / split / odd)
        (base / "own" / split / odd / "0.png").rename(base / "own" / split / odd / f"{odd}.png")
    data = read_images(base / "own", "train", 8)
    assert data.fingerprint() == read_images(base / "own", "train", 8).fingerprint()
    record = Record("bench", odd, {"classes": list(data.classes)})
    assert Record.load(record.save(base / "r.json")).name == r"caf\udce9"
    faulty.write_recipes(base, 0)
    for command in ("linear", "network"):
        arguments = ["immunis", "immunize", str(base / f"{command}.toml"), "-o", str(base / "out")]
        monkeypatch.setattr(sys, "argv", arguments)
        try:
            cli.main()
            ended = 0
        except SystemExit as stop:
            ended = stop.code or 0
        assert ended == 0
        (base / "out").rename(base / f"out-{command}")
    assert "TensorBoard cannot write" in capfd.readouterr().err


DIGITS = "[data]\nsource = 'digits'\n"


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
def test_no_command_uses_the_network(tmp_path, monkeypatch, capsys):
    def blocked(*arguments, **_):
        raise AssertionError(f"a command reached for the network: {arguments}")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, blocked)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, blocked)
    faulty.write_recipes(tmp_path, 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IMMUNIS_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for command, code in (
        (["list"], 0),
        (["measure", "linear.toml"], 0),
        (["immunize", "linear.toml"], 0),
        (["immunize", "network.toml", "-o", "net"], 0),
        (["audit", "audit.toml", "-o", "audit"], 0),
        (["card", "audit/record.json"], 0),
        (["reproduce", "house-prices"], 2),  # no data here, and nobody asked to fetch it
        (["reproduce", "mnist"], 2),
    ):
        monkeypatch.setattr(sys, "argv", ["immunis", *command])
        try:
            cli.main()
            ended = 0
        except SystemExit as stop:
            ended = stop.code or 0
        assert ended == code, (command, capsys.readouterr().err)


def test_what_is_small_may_unpack_to_much(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    check_unpacked(tmp_path / "a", 1 << 30)
    with pytest.raises(InputError, match="unpacks to"):
        check_unpacked(tmp_path / "a", (1 << 30) + 1)
    assert os.path.getsize(tmp_path / "a") == 1


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(no_hang, tmp_path):
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    model = torch.nn.Linear(2, 2)
    for use in (load_recipe, Record.load, About.load, checkpoints.read, read_tensors):
        with pytest.raises(InputError, match="not a regular file"):
            use(pipe)
    with pytest.raises(InputError, match="not a regular file"):
        load_weights(model, pipe)
    os.mkfifo(tmp_path / "data.npz")
    found = recipe(tmp_path, "[data]\nsource = 'npz'\nprimary = 'data.npz'\nharmful = 'b.npz'\n")
    with pytest.raises(InputError, match="data not found"):
        found.tasks()


def test_a_link_in_a_release_that_was_cut_short_leads_nowhere(tmp_path):
    folder, own = tmp_path / "received", tmp_path / "own"
    stage = folder / ".immunis-staged"
    (stage / "sub").mkdir(parents=True)
    own.mkdir()
    (own / "keys").write_text("mine")
    (folder / "sub").symlink_to(own)
    for name in (".immunis", "sub/keys", "SHA256SUMS"):
        (stage / name).write_text("")
    with pytest.raises(OutputError, match="is a link out of"), hold(folder):
        pass
    with pytest.raises(OutputError, match="is a link out of"):
        settle(folder)
    shutil.rmtree(stage)
    with pytest.raises(OutputError, match="is a link out of"):
        release(folder, {"sub/keys": "changed"})
    assert (own / "keys").read_text() == "mine"


@pytest.mark.parametrize("text", ["5", "[5]", "{}", "[" * 100_000, '{"pretrained_cfg": {}}', "[]"])
def test_what_describes_a_model_is_refused_without_a_traceback(tmp_path, text):
    for name in ("modules.json", "config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError):
        text_models.inside_of(SimpleNamespace(folder=tmp_path))
    with pytest.raises(InputError):
        shown_as("timm", f"local-dir:{tmp_path}")
    with pytest.raises(InputError):
        shown_as("transformers", str(tmp_path))
