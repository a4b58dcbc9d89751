"""Rewrite the tables and figures in the docs from the records in ``results/``.

A table stands between ``<!-- table: RECORD -->`` and ``<!-- end -->``; a figure is
``docs/images/RECORD-FIGURE.png``. ``tests/test_docs.py`` fails where either differs from its
record. Run: ``python docs/build.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

from immunis import figures
from immunis.records import Record, write_bytes, write_text
from immunis.reproduce import figures as reproduced
from immunis.reproduce import tables as again
from immunis.tables import (
    audit_table,
    bench_table,
    brief_table,
    demo_table,
    models_table,
    step_table,
    time_table,
    worst_case_table,
)

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLES = {
    "demo": demo_table,
    "bench-core": bench_table,
    "audit-digit-parity": audit_table,
    "audit-digit-parity-worst": worst_case_table,
    "audit-digit-parity-models": models_table,
    "bench-audit": time_table,
    "audit-tiny-imagenet-flowers-resnet18": audit_table,
    "audit-tiny-imagenet-flowers-resnet18-worst": worst_case_table,
    "audit-tiny-imagenet-flowers-resnet18-models": models_table,
    "audit-tiny-imagenet-flowers-resnet18-brief": brief_table,
    "audit-tiny-imagenet-cars-resnet18": audit_table,
    "audit-tiny-imagenet-cars-resnet18-worst": worst_case_table,
    "audit-tiny-imagenet-cars-resnet18-models": models_table,
    "bench-deep": step_table,
    "bench-reproduce": bench_table,
    "reproduce-house-prices": again.house_prices_table,
    "reproduce-house-prices-factors": again.house_prices_factors_table,
    "reproduce-house-prices-attackers": again.house_prices_attack_table,
    "reproduce-house-prices-reasons": again.reasons_table,
    "reproduce-house-prices-floor": again.floor_table,
    "reproduce-mnist": again.mnist_table,
    "reproduce-mnist-pairs": again.mnist_pairs_table,
    "reproduce-mnist-factors": again.mnist_factors_table,
    "reproduce-mnist-reasons": again.reasons_table,
    "reproduce-mnist-binary": again.mnist_binary_table,
    "reproduce-mnist-path": again.mnist_path_table,
}
FIGURES = {
    "demo": ("overview",),
    "reproduce-house-prices": tuple(reproduced.FIGURES["house-prices"]),
    "reproduce-mnist": tuple(reproduced.FIGURES["mnist"]),
}
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.S)


def record(name: str) -> Record:
    """Load a committed record; several tables of one record share the beginning of its name."""
    while not (ROOT / "results" / f"{name}.json").exists() and "-" in name:
        name = name.rpartition("-")[0]
    return Record.load(ROOT / "results" / f"{name}.json")


def page(text: str) -> str:
    """Return a page with every marked table made anew."""
    return BLOCK.sub(lambda m: m[1] + TABLES[m[2]](record(m[2])).markdown() + "\n" + m[3], text)


def drawn(name: str, figure: str) -> bytes:
    """Return a figure of a record as PNG."""
    draw = reproduced.FIGURES.get(name.removeprefix("reproduce-"), {}).get(figure)
    return (draw or getattr(figures, figure))(record(name))


def image(name: str, figure: str) -> Path:
    """Where a figure of a record lies."""
    return ROOT / "docs" / "images" / f"{name}-{figure}.png"


def main() -> None:
    """Rewrite every page and figure."""
    for path in PAGES:
        write_text(path, page(path.read_text(encoding="utf-8")))
    for name, wanted in FIGURES.items():
        for figure in wanted:
            write_bytes(image(name, figure), drawn(name, figure))


if __name__ == "__main__":
    main()
