"""The shape of every kind of record: what its figures, settings and data hold, key by key.

Reports are typed by these shapes. ``core/kinds.py`` says which of them a kind of record has, and
``core/shape_check.py`` holds every loaded record to them. A record may hold more than its shape
names. Keys that older records lack, or that are known in some cases only, are ``NotRequired`` or of
a class that is not ``total``.
"""
# ruff: noqa: D101 - names and comments say what each shape is

from typing import Any, Final, Literal, NotRequired, TypedDict

# The models beside a defence in every audit, and how far cost is counted
ORIGINAL = "original"  # the undefended model of a recipe
CONTROL = "untrained"  # a copy with fresh weights: its features help nobody
SCRATCH: Final = "from scratch"  # that copy, trained by the attacker alone
REACH = 0.9  # cost counts up to this share of what the original allows above chance
MANY_MODELS = 8  # from which on rank correlations over models say something

Free = dict[str, Any]
Numbers = list[float]
TaskKind = Literal["classification", "regression"]
Ratio = float | None  # None where ranks differ
Factors = TypedDict("Factors", {"primary": Ratio, "harmful": Ratio, "value": Ratio})  # value: RIR
Condition = TypedDict("Condition", {"figure": float | None, "holds": bool | None})
Definition = TypedDict(  # the paper's 3.1: (a), (b) and (c)
    "Definition", {"harmful": Condition, "primary": Condition, "score": Condition}
)
Change = TypedDict("Change", {"before": float | None, "after": float | None})
Interval = TypedDict("Interval", {"mean": float, "low": float, "high": float})
# how each row was answered in one run, as core.packing writes it
Packed = TypedDict("Packed", {"kind": Literal["booleans", "floats"], "rows": int, "base64": str})


class Share(TypedDict):  # of the original's help; records of version 0.1 hold numbers alone
    mean: float | None
    low: float | None
    high: float | None
    reason: NotRequired[str]


class Kept(Interval):  # a change of the primary score; holds: it lies above minus the tolerance
    finest: NotRequired[float]  # the smallest loss that so many rows can exclude
    tolerance: float
    holds: bool | None


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
    depths: NotRequired[dict[str, float]]  # what a probe reads at each


class Tried(TypedDict):  # a weight of the search for the strongest defence
    weight: float
    kept: bool  # the held-out primary score was within the tolerance
    primary: float
    probe: float


class Price(TypedDict):  # the primary score less that of the same training without the defence
    plain: float
    mean: float
    low: float  # of the 95% interval over rows
    high: float
    rows: int


Details = TypedDict(  # only the training of a network has a history
    "Details",
    {
        "history": list[Evaluation],
        "best_step": int,
        "notes": list[str],
        "primary_to_keep": float,
        "weights_tried": list[Tried],
        "price": Price,
    },
    total=False,
)


class Score(Change):  # of the primary task, and how far it may fall before a model is refused
    split: str
    most_lost: NotRequired[float | None]
    kept: NotRequired[bool | None]


# the scores are empty for regression
ClassScores = TypedDict("ClassScores", {"classes": list[str], "before": Numbers, "after": Numbers})


class ImmunizeFigures(TypedDict):
    weights: NotRequired[str]  # SHA-256 over names, types, shapes and bits of all tensors
    rir: Factors
    ceiling: float | None  # known for linear extractors only
    shared_ceiling: NotRequired[float]  # without free directions
    rir_against_inputs: Factors | None
    definition: NotRequired[Definition]
    ceiling_against_inputs: float | None
    rho: Change
    primary_score: Score
    retrieval: NotRequired[
        Change
    ]  # of text: how often the nearest primary row is of the same class
    per_class: NotRequired[ClassScores]
    spectra: SpectraChange
    details: Details


class Done(TypedDict):  # an attack that ran
    status: Literal["done"]
    score: Interval
    curve: list[Point]
    hits: NotRequired[list[Packed | None]]  # of each run: variant by variant, each with every seed
    notes: NotRequired[list[str]]  # doubts about its runs
    layers: NotRequired[dict[str, float]]  # the score at each layer, where an attack tries several
    multiplier: NotRequired[dict[str, float]]
    above_untrained: NotRequired[Interval]
    above_original: NotRequired[Interval]
    residual_advantage: NotRequired[Share]


NotDone = TypedDict("NotDone", {"status": Literal["failed", "not applicable"], "reason": str})
Outcome = Done | NotDone
Outcomes = dict[str, dict[str, Outcome]]  # by attack and model
Controls = TypedDict("Controls", {"from scratch": Outcome})


class Variant(Kappas):  # a model that was trained with another seed
    rir: Ratio
    definition: NotRequired[Definition]


class Model(Kappas):  # what is known of an audited model without an attack
    weights: NotRequired[str]  # SHA-256 over names, types, shapes and bits of all tensors
    primary: float | None
    primary_hits: NotRequired[list[Packed]]  # of each variant
    primary_change: NotRequired[dict[str, Kept]]  # against the original, and the same training
    tried: NotRequired[int]  # settings that were tried for it
    per_class: NotRequired[Numbers]
    rir: Ratio
    retrieval: NotRequired[float]  # of text: how often the nearest test row is of the same class
    retrieval_transfer: NotRequired[dict[str, float]]  # the same of each harmless task's text
    pooling: NotRequired[str]  # of text: what makes one row of its tokens
    variants: NotRequired[list[Variant]]
    definition: NotRequired[Definition]
    most_lost: NotRequired[float | None]  # how far the primary score may fall
    broken: bool  # it fell further
    spectra: NotRequired[Spectra]
    ceiling: NotRequired[float]
    shared_ceiling: NotRequired[float]


class Worst(TypedDict):  # over some attacks; the names are None where none ran
    attack: str | None  # gains most
    accuracy: float
    gain: NotRequired[float]
    gain_interval: NotRequired[Interval | None]
    to_original: NotRequired[Interval | None]
    residual_advantage: float | None
    share_attack: NotRequired[str | None]  # keeps most; in version 0.1 it was ``attack``
    interval: NotRequired[Share | None]  # of that share
    overall: float | None
    multiplier: NotRequired[dict[str, float] | None]
    highest_accuracy: float
    highest_attack: str | None
    attacks: int
    undefined: int


class WorstCase(Worst):
    failed: int
    inapplicable: int
    broken: bool
    unseen: NotRequired[Worst]  # the attacks that no defence trains or stops against


class SamplePoint(TypedDict):
    per_class: int | None  # None for all rows
    rows: int
    mean: float
    spread: NotRequired[float | None]  # standard deviation of the scores; None of a single one
    scores: Numbers  # of every training and draw


class SampleCurve(TypedDict):
    points: list[SamplePoint]
    area: float
    spread: NotRequired[float | None]  # of the trainings' own areas


class RunCounts(TypedDict):
    variants: int
    runs: int
    claim: str | None


# how many samples of the attacker's rows there were, the rows of one, and of all together
Attackers = TypedDict("Attackers", {"samples": int, "rows": int, "of": int})


class Varied(TypedDict):
    originals: int
    seeds: int
    attackers: NotRequired[Attackers]
    models: dict[str, RunCounts]


Scored = TypedDict(
    "Scored", {"half": Literal["development", "final", "all"], "rows": int, "of": int}
)
FinalAudits = TypedDict("FinalAudits", {"audits": int})


class Training(TypedDict):  # of one network
    notes: list[str]
    steps: NotRequired[int]
    harmful_batch: NotRequired[int]  # harmful rows a step


Correlation = TypedDict("Correlation", {"score": float, "cost": float})


class Nearest(TypedDict):  # what data.nearness found of two sets
    sets: list[str]
    rows: int
    near: int
    by_chance: float
    suspicious: bool


class Compared(TypedDict):
    sets: list[str]
    rows: list[int]
    unit: str


class Disjoint(TypedDict):  # tolerances are those of data.copies
    checked: bool
    shared: NotRequired[int]
    tolerance: NotRequired[float]
    alike: NotRequired[int]
    compared: NotRequired[Compared]
    nearest: NotRequired[Nearest | None]


class AuditFigures(TypedDict):
    worst_case: dict[str, WorstCase]
    models: dict[str, Model]
    attacks: Outcomes
    controls: Controls
    chance: float
    scored: NotRequired[Scored]  # which test rows
    final: NotRequired[FinalAudits]  # audits of this benchmark's final rows
    factors: NotRequired[Varied]
    classes: list[str]
    transfer: dict[str, Outcomes]  # by harmless task
    predictors: dict[str, Correlation] | None  # None of fewer than eight models
    disjoint: Disjoint
    samples: NotRequired[dict[str, SampleCurve]]  # of classes: by model, over attacker's rows
    training: NotRequired[dict[str, list[Training | None]]]


AuditData = TypedDict("AuditData", {"primary": Data, "attacker": Data})
