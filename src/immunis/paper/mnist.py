"""Table 2 and the heat maps: all ordered pairs of MNIST digits, under two protocols."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from immunis.core.errors import InputError, NumericalError
from immunis.core.jobs import Job
from immunis.core.settings import require, whole
from immunis.data.sources.digit_images import (
    SHA256,
    check_apart,
    mnist_hashes,
    mnist_images,
    standardised,
)
from immunis.data.task import Task
from immunis.paper import digits, released_loop
from immunis.paper.digits import Images, paired_rows
from immunis.paper.measures import ATTACKS, KINDS, Pair, attack, paid, ratios
from immunis.paper.published import LARGE, compare, printed
from immunis.paper.released_loop import Side
from immunis.paper.rows import CLOSED, IDENTITY, ROWS, solved, trained
from immunis.theory.frontier import ceiling
from immunis.theory.gram import gram
from immunis.theory.spectrum import quiet_spectrum

LOOP = released_loop.Settings(  # table 4 and the released configuration
    step=1e-3, lambda_primary=1.0, lambda_harmful=5e7, ridge_harmful=1e-7, loss="logistic", width=28
)
PATH = (1, 3, 5, 10, 20)  # epochs of Algorithm 1 to measure on the way
TRAINED = ("r_ill", "imma", "opt_kappa", "opt_log_kappa", "algorithm_1", "text_step")
SOLVED = ("frontier", "erase")
FIXED = {"draws": 3}  # perturbations of every final layer
PROTOCOLS = ("paper", "binary")
STACK = 45  # runs that train at once on an accelerator
Pairs = tuple[tuple[int, int], ...]
Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Settings:
    """How much to run."""

    pairs: Pairs = tuple(itertools.permutations(range(10), 2))
    seeds: int = 3  # repeats in the paper's protocol, each with its own start, sample and batches
    epochs: int = 30
    attack_rows: int = 1000  # labelled images an attacker holds
    budget: int = 200  # steps an attacker may take

    def __post_init__(self) -> None:
        """Check the pairs and ranges."""
        require(bool(self.pairs), "pairs=(): expected at least one pair of digits.")
        for primary, harmful in self.pairs:
            check_apart([primary], [harmful])
        for name, bound in {"seeds": 1, "epochs": 1, "budget": 1, "attack_rows": 20}.items():
            whole(getattr(self, name), name, bound)

    @property
    def whole_table(self) -> bool:
        """Whether the runs are those of the paper's table."""
        return len(self.pairs) == 90 and self.seeds >= 3 and self.epochs == 30


SIX = ((3, 7), (7, 3), (0, 1), (1, 0), (4, 9), (5, 8))
QUICK = Settings(SIX[:2], 1, epochs=1, attack_rows=500, budget=20)


def read(data: str | Path | None) -> tuple[tuple[Images, Images], dict[str, Any]]:
    """Return the training and test images of the four idx files, and a record's ``data``."""
    hashes = mnist_hashes(data)
    strange = [name for name, found in hashes.items() if found != SHA256[name]]
    if strange:
        what = f"{', '.join(strange)}: not the original MNIST files"
        wanted = f"expected sha256 {SHA256[strange[0]]} for {strange[0]}"
        warnings.warn(f"{what} ({wanted}); figures may differ.", stacklevel=4)
    images = mnist_images(True, data), mnist_images(False, data)
    return images, {"sha256": hashes, "as_expected": not strange}


def jobs(
    images: tuple[Images, Images], settings: Settings, device: str = "cpu"
) -> Iterator[tuple[tuple[Any, ...], Job]]:
    """Yield the jobs after what decides their results; those of the paper's protocol come first.

    A job solves the closed forms of one pair, or trains one method on some pairs at once. In the
    binary protocol Algorithm 1 alone is trained, on six pairs.
    """
    same = {k: v for k, v in dataclasses.asdict(settings).items() if k not in ("pairs", "seeds")}
    stack = 1 if device == "cpu" else STACK
    few = tuple(pair for pair in SIX if pair in settings.pairs)
    trained = {"paper": (TRAINED, settings.pairs), "binary": (("algorithm_1",), few)}
    for protocol, seed in itertools.product(PROTOCOLS, range(settings.seeds)):
        if protocol == "binary" and seed:
            continue
        for pair in settings.pairs:
            label = f"{protocol}, closed form: {pair[0]} against {pair[1]}"
            job = Job(run_solved, (protocol, pair, seed, settings, images, device), label)
            yield (protocol, pair, seed, same), job
        names, pairs = trained[protocol]
        chunks = [pairs[i : i + stack] for i in range(0, len(pairs), stack)]
        for name, chunk in itertools.product(names, chunks):
            first = f"{chunk[0][0]} against {chunk[0][1]}"
            label = f"{protocol}, {ROWS[name].label}: {len(chunk)} from {first}"
            arguments = (protocol, name, chunk, seed, settings, images, device)
            yield (*arguments[:4], same), Job(run_trained, arguments, label)


def run_solved(
    protocol: str,
    pair: tuple[int, int],
    seed: int,
    settings: Settings,
    images: tuple[Images, Images],
    device: str,
) -> list[dict[str, Any]]:
    """Measure the identity, which is a pair's inputs, and the closed forms."""
    drawn = paired_rows(images[0][1], protocol, pair, seed)
    inputs = [torch.from_numpy(standardised(images[0][0][rows])).float() for rows, _ in drawn]
    one, two = (Task((x, labels)) for x, (_, labels) in zip(inputs, drawn, strict=True))
    measures, grams = Pair(inputs[0].to(device), inputs[1].to(device)), (gram(one), gram(two))
    found = []
    for name in (IDENTITY, *SOLVED):
        try:
            layer = solved(ROWS[name], (one, two), grams, LOOP, CLOSED, seed).to(device)
            cell = _cell(layer, measures, protocol, pair, settings, images)
        except (InputError, NumericalError) as error:  # InputError: one label, nothing to erase
            cell = {"failed": str(error)}
        found.append(_run(protocol, name, pair, seed) | cell)
    if seed == 0:
        spectra = [quiet_spectrum(each) for each in grams]
        found[0]["figures"] = {
            "ceiling": ceiling(*grams),
            "free_directions": spectra[1].free_directions(spectra[0]),
            "ranks": [each.rank for each in spectra],
        }
    return found


def _run(protocol: str, method: str, pair: tuple[int, int], seed: int) -> dict[str, Any]:
    return {"protocol": protocol, "method": method, "pair": list(pair), "seed": seed, "path": []}


def _cell(
    layer: nn.Linear,
    measures: Pair,
    protocol: str,
    pair: tuple[int, int],
    settings: Settings,
    images: tuple[Images, Images],
) -> dict[str, Any]:
    """Return both κ of a final layer, and what attackers of the binary protocol reach."""
    found: dict[str, Any] = {"kappas": measures.kappas(layer, FIXED["draws"])}
    if protocol == "binary":
        samples = digits.attacker_samples(*images, pair[1], settings.attack_rows, 0)
        found["attacks"] = attack(layer, samples, settings.budget, 0)
    return found


def run_trained(
    protocol: str,
    name: str,
    pairs: Pairs,
    seed: int,
    settings: Settings,
    images: tuple[Images, Images],
    device: str,
) -> list[dict[str, Any]]:
    """Train one method on some pairs at once and measure each.

    In the paper's protocol the first seed runs once more from a start that differs by rounding.
    """
    again = protocol == "paper" and seed == 0
    runs = [*pairs, *(pairs if again else ())]
    path = PATH if name == "algorithm_1" and again else ()
    marks = [*(mark for mark in path if mark < settings.epochs), settings.epochs]
    pixels = torch.from_numpy(standardised(images[0][0])).float().to(device)
    drawn = [paired_rows(images[0][1], protocol, pair, seed) for pair in runs]
    sides = []
    for tasks in zip(*drawn, strict=True):  # the primary ones of all runs, then the harmful ones
        rows, labels = zip(*tasks, strict=True)
        sides.append(
            Side(pixels, *([torch.from_numpy(v) for v in each] for each in (rows, labels)))
        )
    primary, harmful = sides
    found = [_run(protocol, name, pair, seed) for pair in pairs]
    reruns = len(runs) - len(pairs)
    for index, epoch, layer in trained(
        ROWS[name], primary, harmful, LOOP, marks, seed, reruns, device
    ):
        run, rerun = found[index % len(pairs)], index >= len(pairs)
        rows_p, rows_h = (side.rows[index].to(device) for side in sides)
        measures = Pair(pixels[rows_p], pixels[rows_h])
        try:
            if rerun and epoch == settings.epochs:
                run["rerun"] = measures.kappas(layer)
            elif epoch == settings.epochs:
                run |= _cell(layer, measures, protocol, runs[index], settings, images)
            elif not rerun:
                run["path"].append([epoch, measures.kappas(layer)])
        except NumericalError as error:
            run["lost" if rerun else "failed"] = str(error)
    return found


def figures(images: Any, settings: Settings, results: Sequence[Any]) -> dict[str, Any]:
    """Return rows, maps, ceilings and attackers of both protocols, and the path of Algorithm 1."""
    runs = list(itertools.chain.from_iterable(results))
    inputs = {_place(run): run for run in runs if run["method"] == IDENTITY}
    points = []
    for run in runs:
        before = inputs[_place(run)]["kappas"]
        if "kappas" in run:
            run["ratios"] = ratios(before, run["kappas"])
        if "rerun" in run:
            run["rerun"] = ratios(before, run["rerun"])
        if run["path"]:
            path = [*run["path"], *([[settings.epochs, run["kappas"]]] if "kappas" in run else ())]
            for epoch, kappas in path:
                each = ratios(before, kappas)
                short = [float(f"{each[kind]['rir']:.5g}") for kind in KINDS]
                points.append([*run["pair"], run["seed"], epoch, *short])
    said = {"paper": printed("mnist")["methods"], "binary": {}}
    return {
        "protocols": {
            protocol: _protocol(
                [run for run in runs if run["protocol"] == protocol], settings, said[protocol]
            )
            for protocol in PROTOCOLS
        },
        "path": {"step": LOOP.step, "points": points},
    }


def _place(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return run["protocol"], run["seed"], *run["pair"]


def _protocol(runs: Runs, settings: Settings, said: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the rows, their maps, and the figures of all pairs."""
    rows, maps = [], {}
    by_method = {name: [r for r in runs if r["method"] == name] for name in ROWS}
    originals = {_place(run): run for run in by_method[IDENTITY]}
    for name in (*TRAINED, *SOLVED):
        row, own = ROWS[name], by_method[name]
        if not own:
            continue
        cells = [(run["seed"], run) for run in own]
        found = compare(said.get(row.said), cells, settings.whole_table)
        if "honest" in found:
            maps[name] = {kind: _map(own, kind) for kind in KINDS}
            found["successes"] = {kind: _count(maps[name][kind]) for kind in KINDS}
        step, epochs = (row.loop(LOOP).step, settings.epochs) if row.objective else (None, None)
        found |= {"method": name, "label": row.label, "step": step, "epochs": epochs}
        rows.append(found | {"attacks": _attacked(own, originals)})
    pairs = {
        "{} {}".format(*run["pair"]): {
            **run["figures"],
            "kappa": [run["kappas"][kind][side] for side in (0, 1) for kind in KINDS],
        }
        for run in by_method[IDENTITY]
        if "figures" in run
    }
    attacked = _attacked(by_method[IDENTITY], originals)
    return {"rows": rows, "maps": maps, "pairs": pairs, "identity": attacked}


def _map(runs: Runs, kind: str) -> list[list[float | None]]:
    """Return log RIR by primary and harmful digit, mean over seeds; None where there is none."""
    found: dict[tuple[int, ...], list[float]] = {}
    for run in runs:
        if "ratios" in run:
            found.setdefault(tuple(run["pair"]), []).append(math.log(run["ratios"][kind]["rir"]))
    means = {pair: round(float(np.mean(values)), 4) for pair, values in found.items()}
    return [[means.get((p, h)) for h in range(10)] for p in range(10)]


def _count(cells: Sequence[Sequence[float | None]]) -> dict[str, int]:
    """Count the pairs with a figure, and those that succeed: RIR of at least ten."""
    known = [value for line in cells for value in line if value is not None]
    return {"pairs": len(known), "large": sum(value >= math.log(LARGE) for value in known)}


def _attacked(runs: Runs, originals: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what each attack reaches over the pairs: mean accuracy by step, and its cost."""
    each = []
    for run in runs:
        if "attacks" in run:
            both = {False: [originals[_place(run)]["attacks"]], True: [run["attacks"]]}
            each.append(paid(both, False, 0.5)[True])
    summary = {}
    for which in ATTACKS:
        good = [row[which] for row in each if "score" in row[which]]
        if good:
            curves = zip(*(row["curve"] for row in good), strict=True)  # the points of a step
            scores = [row["score"]["median"] for row in good]
            summary[which] = {
                "score": {"mean": float(np.mean(scores)), "low": min(scores), "high": max(scores)},
                "multiplier": float(np.median([row["multiplier"] for row in good])),
                "curve": [
                    {"steps": each[0]["steps"], "mean": float(np.mean([p["median"] for p in each]))}
                    for each in curves
                ],
                "runs": len(good),
            }
    return summary
