"""Pictures on disk, in the layouts that data sets come in."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image
from scipy.io import savemat

RNG = np.random.default_rng(0)


def picture(width=20, height=14, kind="PNG", grey=False):
    shape = (height, width) if grey else (height, width, 3)
    image = Image.fromarray(RNG.integers(0, 255, shape, dtype=np.uint8))
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def write_folders(base, split, classes=3, each=4):
    for label in range(classes):
        folder = base / split / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(each):
            (folder / f"{index}.png").write_bytes(picture(grey=index == 0))


def write_parquet(path, classes=3, each=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [(picture(kind="JPEG"), label) for label in range(classes) for _ in range(each)]
    table = pa.table(
        {
            "image": [{"bytes": content, "path": None} for content, _ in rows],
            "label": [label for _, label in rows],
        }
    )
    pyarrow.parquet.write_table(table, path)


def write_cars(base, each=6):
    devkit = base / "devkit"
    devkit.mkdir(parents=True)
    for split, name in (
        ("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat"),
    ):  # fmt: skip
        folder = base / f"cars_{split}"
        folder.mkdir()
        kind = [("class", "O"), ("fname", "O")]
        rows = np.zeros(each, dtype=kind)
        for index in range(each):
            rows[index] = (index % 2 + 1, f"{index:05}.jpg")
            (folder / f"{index:05}.jpg").write_bytes(picture(kind="JPEG"))
        savemat(devkit / name, {"annotations": rows})
