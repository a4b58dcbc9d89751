"""How much a score would differ with other trainings, other attackers and other test rows.

Each replicate draws the trainings of a model (or the originals they were made from), the attacker's
seeds and the test rows anew, with replacement. Seeds, rows and originals are the same for all
models and all attacks of a replicate, so that differences are paired. A score is linear in the
rows: their weights are counts, and all scores of many replicates are one matrix product.

Few trainings and few seeds make two things go wrong in a plain bootstrap, and both are mended.
Drawing n of n levels makes the spread too small by ``(n − 1)/n``; so ``n − 1`` are drawn (Rao and
Wu, 1988). And percentiles know nothing of Student's t; so their distance from the estimate is
stretched by ``t/1.96``, with Satterthwaite's degrees of freedom over the three factors. Drawing
all factors at once counts their interactions up to seven times; the stretch takes that back to
three times at most, so intervals err on the wide side.

Two more things a bootstrap cannot know. Where all rows, or all but a few, are answered alike it
has hardly any width; so an interval is at least as wide as the score interval of its rows
(``theory.score_interval``). And seeds whose samples share most of their rows differ less than
fresh samples do; so what they differ by is scaled up (``Design.scale``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from immunis.core.errors import InputError
from immunis.core.shapes import Interval
from immunis.theory.score_interval import score_interval

REPLICATES = 2000
NORMAL = 1.959964  # 97.5% quantile
CHUNK = 1 << 24  # weights of rows that are held at a time
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Design:
    """What varies in an audit.

    Attributes:
        origins: by model, which original each of its variants was made from: one, or all of them.
        seeds: attacker seeds; each runs against every variant.
        parts: of how many equal parts of the attacker's rows each seed leaves out one, another
            one each time; 0 if all seeds have all rows, or each has rows of its own.
        fresh: models that are another network for each seed.
    """

    origins: Mapping[str, Sequence[int]]
    seeds: int
    parts: int = 0
    fresh: Collection[str] = ()

    def __post_init__(self) -> None:
        """Raise InputError for variants of some originals: a replicate may draw none of these."""
        for model, of in self.origins.items():
            if 1 < len(set(of)) < self.originals:
                raise InputError(
                    f"{model}: its variants come from {len(set(of))} of {self.originals} "
                    "originals; give variants of one original, or of all."
                )

    @property
    def originals(self) -> int:
        """The number of originals."""
        return len({place for of in self.origins.values() for place in of})

    def scale(self, model: str) -> float:
        """Return what the difference of a seed's score from the mean is multiplied by.

        All seeds share most of one set of rows. So the variance that a fresh set would make is not
        divided by the number of seeds, as a bootstrap of them does. With one part of G left out it
        is (G − 1)²/G of the variance between seeds, as in a grouped jackknife. Where each seed has
        its own network too, that adds enough: the variance between seeds is taken as it is.
        """
        if not self.parts:
            return 1.0
        share = 1.0 if model in self.fresh else (self.parts - 1) ** 2 / self.parts
        return math.sqrt(self.seeds * share)

    def follows(self, model: str) -> bool:
        """Return True if a model's variants are drawn with their originals."""
        return len(set(self.origins[model])) > 1

    def levels(self, model: str) -> int:
        """Return how many independent trainings stand behind a model."""
        found = self.origins[model]
        return len(set(found)) if self.follows(model) else len(found)


class Estimate(NamedTuple):
    """A figure with its replicates.

    Attributes:
        point: the figure itself.
        draws: 4×replicates: where all factors vary, then only trainings, seeds, or rows.
        freedom: degrees of freedom of trainings, seeds and rows; 0 where there is one level.
        answers: the share of runs that answered each row right; of a difference also that of the
            other figure; none where the rows say nothing of its width (R², shares).
    """

    point: float
    draws: np.ndarray
    freedom: tuple[int, int, int]
    answers: tuple[np.ndarray, ...] = ()


def combined(call: Callable[..., Any], *estimates: Estimate) -> Estimate:
    """Return a figure of several others, computed within each replicate."""
    with np.errstate(all="ignore"):
        point = float(call(*(np.float64(each.point) for each in estimates)))
        draws = call(*(each.draws for each in estimates))
    levels = zip(*(each.freedom for each in estimates), strict=True)
    free = tuple(min((n for n in of if n), default=0) for of in levels)
    return Estimate(point, draws, free)  # type: ignore[arg-type]


def difference(one: Estimate, other: Estimate) -> Estimate:
    """Return one figure less another, paired by replicate."""
    answers = one.answers + other.answers
    found = combined(np.subtract, one, other)
    return found._replace(answers=answers if len(answers) == 2 else ())


def largest(estimates: Sequence[Estimate]) -> Estimate:
    """Return the largest figure, chosen anew in each replicate; NaN is never the largest."""
    found = combined(lambda *values: np.fmax.reduce(values), *estimates)
    best = max(estimates, key=lambda each: np.nan_to_num(each.point, nan=-np.inf))
    return found._replace(answers=best.answers)


def spread(estimate: Estimate) -> float:
    """Return the bootstrap standard error."""
    with np.errstate(all="ignore"):  # diverged scores have squares beyond float64: ∞
        return float(np.std(estimate.draws[0]))


def interval(estimate: Estimate, selected: bool = False) -> Interval:
    """Return a figure with its 95% interval; NaN for ends that are not known.

    A ``selected`` figure is the largest of several. Its replicates lie above it, as it lies above
    the truth, so the interval reaches as far down as up. An interval of accuracies reaches at least
    as far as the score interval of the rows.
    """
    point, draws = estimate.point, estimate.draws[0]
    if not (np.isfinite(point) and np.isfinite(draws).all() and any(estimate.freedom)):
        return {"mean": point, "low": np.nan, "high": np.nan}
    low, high = _stretch(estimate) * (np.quantile(draws, (0.025, 0.975)) - point)
    if selected:
        low = min(low, -high)
    ends = [float(point + low), float(point + high)]
    if estimate.answers:  # accuracies lie between 0 and 1
        ends += score_interval(*estimate.answers)
        ends = [min(max(end, 1.0 - len(estimate.answers)), 1.0) for end in ends]
    return {"mean": point, "low": min(ends), "high": max(ends)}


def _stretch(estimate: Estimate) -> float:
    """Return how many times as far from the estimate as its percentiles an interval reaches.

    Student's quantile over that of a normal distribution, and the standard error from each factor
    alone over the one with all: that one counts their interactions more often still.
    """
    from scipy import stats

    size = max(float(np.abs(estimate.draws - estimate.point).max()), np.finfo(float).tiny)
    variances = np.var((estimate.draws - estimate.point) / size, axis=1)
    parts = list(zip(variances[1:], estimate.freedom, strict=True))
    total = sum(part for part, _ in parts)
    if not (total > 0 and variances[0] > 0):
        return 1.0
    weight = sum((part / total) ** 2 / free for part, free in parts if free)
    excess = min(1.0, float(np.sqrt(total / variances[0])))
    return float(stats.t.ppf(0.975, 1 / weight)) / NORMAL * excess


def replicated(
    hits: Mapping[Key, np.ndarray],
    design: Design,
    model_of: Callable[[Key], str],
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[Key, Estimate]:
    """Return the score of every key with its replicates.

    ``hits[key]`` are the answers of all runs (runs×rows), variant by variant and each with every
    seed in order: booleans (the score is their mean) or shares of the squared deviation (1 minus
    their sum). All keys share their rows.
    """
    if not hits:
        return {}
    rng = np.random.default_rng(seed)
    seeds = _weights(rng, replicates, design.seeds)
    originals = _weights(rng, replicates, design.originals)
    rows = next(iter(hits.values())).shape[1]
    runs = {
        model: _run_weights(rng, design, model, seeds, originals)
        for model in sorted({model_of(key) for key in hits})
    }
    found = {key: np.empty((4, replicates)) for key in hits}
    size = max(1, CHUNK // max(rows, 1))
    for start in range(0, replicates, size):
        part = slice(start, min(start + size, replicates))
        counts = _weights(rng, part.stop - start, rows)
        exact = counts.astype(np.float32) * (rows - 1 or 1)  # whole numbers
        for key, of in hits.items():
            if of.dtype == bool:
                means = (exact @ of.T.astype(np.float32)).astype(np.float64) / (rows - 1 or 1)
            else:
                with np.errstate(all="ignore"):
                    means = 1 - rows * (counts @ of.T)
            whole, *_ = runs[model_of(key)]
            found[key][0, part] = (whole[part] * means).sum(1)
            found[key][3, part] = means.mean(1)
    for key, of in hits.items():
        _, alone, others = runs[model_of(key)]
        points = of.mean(1) if of.dtype == bool else 1 - of.sum(1)
        with np.errstate(all="ignore"):
            found[key][1:3] = alone @ points, others @ points
    free = {m: (design.levels(m) - 1, design.seeds - 1, rows - 1) for m in runs}
    return {
        key: Estimate(
            float((of.mean(1) if of.dtype == bool else 1 - of.sum(1)).mean()),
            found[key],
            free[model_of(key)],
            (of.mean(0),) if of.dtype == bool else (),
        )
        for key, of in hits.items()
    }


def _weights(rng: np.random.Generator, replicates: int, levels: int) -> np.ndarray:
    """Return the share of each level in each replicate, when one level less is drawn than is."""
    drawn = max(1, levels - 1)
    chosen = rng.integers(levels, size=(replicates, drawn))
    flat = (chosen + levels * np.arange(replicates)[:, None]).ravel()
    return np.bincount(flat, minlength=replicates * levels).reshape(replicates, levels) / drawn


def _run_weights(
    rng: np.random.Generator, design: Design, model: str, seeds: np.ndarray, originals: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weight of each run by replicate: all varies, only trainings, only seeds.

    Variants of several originals are drawn with them; those of one are drawn themselves; one alone
    is not drawn.
    """
    origins = list(design.origins[model])
    if len(origins) == 1:
        variants = np.ones((len(seeds), 1))
    elif design.follows(model):
        variants = originals[:, origins]
        variants = variants / variants.sum(1, keepdims=True)
    else:
        variants = _weights(rng, len(seeds), len(origins))
    count = seeds.shape[1]
    seeds = 1 / count + design.scale(model) * (seeds - 1 / count)

    def crossed(of: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (of[:, :, None] * by[:, None, :]).reshape(len(of), -1)

    same = np.full_like(variants, 1 / len(origins)), np.full_like(seeds, 1 / count)
    return crossed(variants, seeds), crossed(variants, same[1]), crossed(same[0], seeds)
