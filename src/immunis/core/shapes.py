"""The shape of every kind of record: what its figures, settings and data hold, key by key.

Reports are typed by these shapes, and ``shape_check`` holds every loaded record to them. A record
may hold more than its shape names. Keys that older records lack, or that are known in some cases
only, are ``NotRequired`` or of a class that is not ``total``.
"""
# ruff: noqa: D101 - names and comments say what each shape is

from typing import Any, Literal, NotRequired, TypedDict

Free = dict[str, Any]
Numbers = list[float]
TaskKind = Literal["classification", "regression"]
Factors = TypedDict("Factors", {"primary": float, "harmful": float, "value": float})  # value: RIR
Change = TypedDict("Change", {"before": float | None, "after": float | None})
Interval = TypedDict("Interval", {"mean": float, "low": float, "high": float})
# train and test are fingerprints of a task's samples
Data = TypedDict("Data", {"name": str, "kind": TaskKind, "train": str, "test": str | None})
DataPair = TypedDict("DataPair", {"primary": Data, "harmful": Data})
Point = TypedDict(  # of a learning curve
    "Point", {"steps": int, "flops": float, "mean": float, "low": float, "high": float}
)
Sizes = TypedDict("Sizes", {"rank": int, "dimension": int, "samples": int})
Kappas = TypedDict("Kappas", {"kappa_primary": float, "kappa_harmful": float, "rho": float})


class Spectrum(Sizes):
    condition_number: float
    relative_error: NotRequired[float]
    index: NotRequired[list[int]]  # places of the eigenvalues, from 1; all if left out
    eigenvalues: Numbers


Spectra = TypedDict("Spectra", {"primary": Spectrum, "harmful": Spectrum})
SpectrumChange = TypedDict("SpectrumChange", {"before": Spectrum, "after": Spectrum})
SpectraChange = TypedDict("SpectraChange", {"primary": SpectrumChange, "harmful": SpectrumChange})


class Evaluation(Kappas):  # on held-out rows during training
    step: int
    primary: float
    probe: float
    probe_trained: NotRequired[float]


Details = TypedDict(  # only the training of a network has a history
    "Details", {"history": list[Evaluation], "best_step": int, "notes": list[str]}, total=False
)
Score = TypedDict("Score", {"before": float | None, "after": float | None, "split": str})
# the scores are empty for regression
ClassScores = TypedDict("ClassScores", {"classes": list[str], "before": Numbers, "after": Numbers})


class ImmunizeFigures(TypedDict):
    rir: Factors
    ceiling: float | None  # known for linear extractors only
    rir_against_inputs: Factors | None
    ceiling_against_inputs: float | None
    rho: Change
    primary_score: Score
    per_class: NotRequired[ClassScores]
    spectra: SpectraChange
    details: Details


class Done(TypedDict):  # an attack that ran
    status: Literal["done"]
    score: Interval
    curve: list[Point]
    multiplier: NotRequired[dict[str, float]]
    residual_advantage: NotRequired[Interval]


NotDone = TypedDict("NotDone", {"status": Literal["failed", "not applicable"], "reason": str})
Outcome = Done | NotDone
Outcomes = dict[str, dict[str, Outcome]]  # by attack and model
Controls = TypedDict("Controls", {"from scratch": Outcome})
Counts = TypedDict("Counts", {"attacks": int, "undefined": int, "failed": int, "inapplicable": int})


class Model(Kappas):  # what is known of an audited model without an attack
    primary: float | None
    per_class: NotRequired[Numbers]
    rir: float
    broken: bool
    spectra: NotRequired[Spectra]
    ceiling: NotRequired[float]


class WorstCase(Counts):  # the attacks are None where none ran
    attack: str | None
    accuracy: float
    residual_advantage: float
    overall: float
    gain: NotRequired[float]
    interval: NotRequired[Interval | None]
    multiplier: NotRequired[dict[str, float] | None]
    highest_accuracy: float
    highest_attack: str | None
    broken: bool


Training = TypedDict("Training", {"notes": list[str]})
Correlation = TypedDict("Correlation", {"score": float, "cost": float})
Disjoint = TypedDict("Disjoint", {"checked": bool})


class AuditFigures(TypedDict):
    worst_case: dict[str, WorstCase]
    models: dict[str, Model]
    attacks: Outcomes
    controls: Controls
    chance: float
    classes: list[str]
    transfer: dict[str, Outcomes]  # by harmless task
    predictors: dict[str, Correlation]
    disjoint: Disjoint
    training: NotRequired[dict[str, list[Training | None]]]


AuditData = TypedDict("AuditData", {"primary": Data, "attacker": Data})

# Only the check needs the shapes below, so they are plain: "*" stands for any key, "?" ends a key
# that may be missing, and [shape] is a list.
MEASURE = {"primary": Spectrum, "harmful": Spectrum, "ceiling": float, "rho": float | None}
SCALING: Any = Literal["imagenet", "clip", "inception"]
RECIPE: Free = {"data?": {"size?": int, "scaling?": SCALING}, "model?": Free}
AUDIT: Free = {"attacks": list[str], "budget": int, "seeds": int, "original": str}
AUDIT |= {"not_run?": dict[str, str], "recipe?": RECIPE}

NORM_RATIO = {"steps": list[int], "primary": Numbers, "harmful": Numbers}
READS = {"gradient_descent": dict[str, float], "ridge": float}  # by steps
METHOD: Free = {"rir": Factors, "spectra": Spectra, "norm_ratio": NORM_RATIO}
METHOD |= {"harmful_accuracy": READS, "primary_accuracy": float, "seconds": float}

# The rows are methods. Those that found a θ hold released and honest condition numbers.
MEAN = {"mean": float, "std": float}
RATIOS = {"primary": MEAN, "harmful": MEAN, "rir": MEAN}
MEDIANS: Free = {"score": Free, "curve": [{"steps": int, "median": float}]}
ROW: Free = {"method": str, "label": str, "epochs": int, "attacks": {"*": MEDIANS}}
ROW |= {"released?": RATIOS, "honest?": RATIOS}
EIGENVALUES = {"primary": Numbers, "harmful": Numbers}
CURVES = {"steps": list[int], "curves": {"*": {"label": str, "epochs": int, **EIGENVALUES}}}
PATH = {"epochs": list[int], "released": Numbers, "honest": Numbers}
INPUTS = {"honest": float, "rank": int}
PAIR = {"primary": INPUTS, "harmful": INPUTS, "eigenvalues": EIGENVALUES, "kappa_m": float}
HOUSE_PRICES: Free = {"pair": PAIR, "rows": [ROW], "identity": {"*": MEDIANS}}
HOUSE_PRICES |= {"norm_ratio": CURVES, "path": {"*": PATH}}
MEDIAN = {**MEAN, "median": float}  # over pairs of digits
PAIR_RATIOS = {"primary": MEDIAN, "harmful": MEDIAN, "rir": MEDIAN}
MEANS = {"score": dict[str, float], "curve": [{"steps": int, "mean": float}]}
COUNT = {"pairs": int, "large": int}
PAIR_ROW: Free = {"name": str, "method": str, "label": str, "attacks": {"*": MEANS}}
PAIR_ROW |= {"step": float | None, "epochs": int | None, "released?": PAIR_RATIOS}
PAIR_ROW |= {"honest?": PAIR_RATIOS, "successes?": {"released": COUNT, "honest": COUNT}}
MAPS = dict.fromkeys(("released", "honest"), list[list[float | None]])
PROTOCOL: Free = {"rows": [PAIR_ROW], "maps": {"*": MAPS}, "pairs": {"*": Free}}
PROTOCOL |= {"identity": {"*": MEANS}}
PROTOCOLS = {"paper": PROTOCOL, "binary": PROTOCOL}

PARALLEL: list[Any] = [NORM_RATIO, PATH]  # all their lists are of one length
SHAPES: dict[str, tuple[Any, Any, Any]] = {  # figures, settings and data by kind (and name)
    "measure": (MEASURE, Free, DataPair),
    "immunize": (ImmunizeFigures, {"method": str, "recipe?": RECIPE}, DataPair),
    "audit": (AuditFigures, AUDIT, AuditData),
    "demo": ({"ceiling": float, "methods": {"*": METHOD}}, {"steps": list[int]}, DataPair),
    "reproduce house-prices": (HOUSE_PRICES, {"budget": int, "epochs": list[int]}, Free),
    "reproduce mnist": ({"protocols": PROTOCOLS}, {"budget": int}, Free),
}
