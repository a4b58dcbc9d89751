"""The shape of every kind of record: what its figures, settings and data hold, key by key.

Reports are typed by these shapes, and ``shape_check`` holds every loaded record to them. A record
may hold more than its shape names. Keys that older records lack, or that are known in some cases
only, are ``NotRequired``.
"""

from typing import Any, Literal, NotRequired, TypedDict

Factors = TypedDict("Factors", {"primary": float, "harmful": float, "value": float})  # value: RIR
Change = TypedDict("Change", {"before": float | None, "after": float | None})
Interval = TypedDict("Interval", {"mean": float, "low": float, "high": float})
Data = TypedDict(  # of one task; train and test are fingerprints of its samples
    "Data",
    {
        "name": str,
        "kind": Literal["classification", "regression"],
        "train": str,
        "test": str | None,
    },
)
DataPair = TypedDict("DataPair", {"primary": Data, "harmful": Data})
Spectrum = TypedDict(
    "Spectrum",
    {
        "condition_number": float,
        "relative_error": NotRequired[float],
        "rank": int,
        "dimension": int,
        "samples": int,
        "index": NotRequired[list[int]],  # places of the eigenvalues, from 1; all if left out
        "eigenvalues": list[float],
    },
)
Spectra = TypedDict("Spectra", {"primary": Spectrum, "harmful": Spectrum})
SpectrumChange = TypedDict("SpectrumChange", {"before": Spectrum, "after": Spectrum})
SpectraChange = TypedDict("SpectraChange", {"primary": SpectrumChange, "harmful": SpectrumChange})

MeasureFigures = TypedDict(
    "MeasureFigures",
    {"primary": Spectrum, "harmful": Spectrum, "ceiling": float, "rho": float | None},
)

PrimaryScore = TypedDict(
    "PrimaryScore", {"before": float | None, "after": float | None, "split": str}
)
ClassScores = TypedDict(  # the scores are empty for regression
    "ClassScores", {"classes": list[str], "before": list[float], "after": list[float]}
)
Evaluation = TypedDict(  # one evaluation on held-out rows during training
    "Evaluation",
    {
        "step": int,
        "primary": float,
        "probe": float,
        "probe_trained": NotRequired[float],
        "rho": float,
        "kappa_primary": float,
        "kappa_harmful": float,
    },
)
Details = TypedDict(  # only the training of a network has a history
    "Details",
    {
        "history": NotRequired[list[Evaluation]],
        "best_step": NotRequired[int],
        "notes": NotRequired[list[str]],
    },
)
ImmunizeFigures = TypedDict(
    "ImmunizeFigures",
    {
        "rir": Factors,
        "ceiling": float | None,  # known for linear extractors only
        "rir_against_inputs": Factors | None,
        "ceiling_against_inputs": float | None,
        "rho": Change,
        "primary_score": PrimaryScore,
        "per_class": NotRequired[ClassScores],
        "spectra": SpectraChange,
        "details": Details,
    },
)
Scaling = Literal["imagenet", "clip", "inception"]
RecipeData = TypedDict("RecipeData", {"size": NotRequired[int], "scaling": NotRequired[Scaling]})
Recipe = TypedDict(
    "Recipe", {"data": NotRequired[RecipeData], "model": NotRequired[dict[str, Any]]}
)
ImmunizeSettings = TypedDict("ImmunizeSettings", {"method": str, "recipe": NotRequired[Recipe]})

Point = TypedDict(  # of a learning curve
    "Point", {"steps": int, "flops": float, "mean": float, "low": float, "high": float}
)
Done = TypedDict(  # an attack that ran
    "Done",
    {
        "status": Literal["done"],
        "score": Interval,
        "curve": list[Point],
        "multiplier": NotRequired[dict[str, float]],
        "residual_advantage": NotRequired[Interval],
    },
)
NotDone = TypedDict("NotDone", {"status": Literal["failed", "not applicable"], "reason": str})
Outcome = Done | NotDone
Outcomes = dict[str, dict[str, Outcome]]  # by attack and model
Controls = TypedDict("Controls", {"from scratch": Outcome})
Model = TypedDict(  # what is known of an audited model without an attack
    "Model",
    {
        "primary": float | None,
        "per_class": NotRequired[list[float]],
        "kappa_primary": float,
        "kappa_harmful": float,
        "rho": float,
        "rir": float,
        "broken": bool,
        "spectra": NotRequired[Spectra],
        "ceiling": NotRequired[float],
    },
)
WorstCase = TypedDict(
    "WorstCase",
    {
        "attack": str | None,  # None where no attack ran
        "accuracy": float,
        "residual_advantage": float,
        "overall": float,
        "gain": NotRequired[float],
        "interval": NotRequired[Interval | None],
        "multiplier": NotRequired[dict[str, float] | None],
        "highest_accuracy": float,
        "highest_attack": str | None,
        "undefined": int,
        "attacks": int,
        "failed": int,
        "inapplicable": int,
        "broken": bool,
    },
)
Training = TypedDict("Training", {"notes": list[str]})
Correlation = TypedDict("Correlation", {"score": float, "cost": float})
Disjoint = TypedDict("Disjoint", {"checked": bool})
AuditFigures = TypedDict(
    "AuditFigures",
    {
        "worst_case": dict[str, WorstCase],
        "models": dict[str, Model],
        "attacks": Outcomes,
        "controls": Controls,
        "chance": float,
        "classes": list[str],
        "transfer": dict[str, Outcomes],  # by harmless task
        "predictors": dict[str, Correlation],
        "disjoint": Disjoint,
        "training": NotRequired[dict[str, list[Training | None]]],
    },
)
AuditSettings = TypedDict(
    "AuditSettings",
    {
        "attacks": list[str],
        "not_run": NotRequired[dict[str, str]],
        "budget": int,
        "seeds": int,
        "original": str,
        "recipe": NotRequired[Recipe],
    },
)
AuditData = TypedDict("AuditData", {"primary": Data, "attacker": Data})

NormRatio = TypedDict(
    "NormRatio", {"steps": list[int], "primary": list[float], "harmful": list[float]}
)
Reads = TypedDict("Reads", {"gradient_descent": dict[str, float], "ridge": float})  # by steps
DemoMethod = TypedDict(
    "DemoMethod",
    {
        "rir": Factors,
        "spectra": Spectra,
        "norm_ratio": NormRatio,
        "harmful_accuracy": Reads,
        "primary_accuracy": float,
        "seconds": float,
    },
)
DemoFigures = TypedDict("DemoFigures", {"ceiling": float, "methods": dict[str, DemoMethod]})
DemoSettings = TypedDict("DemoSettings", {"steps": list[int]})

Mean = TypedDict("Mean", {"mean": float, "std": float})
Ratios = TypedDict("Ratios", {"primary": Mean, "harmful": Mean, "rir": Mean})
MedianPoint = TypedDict("MedianPoint", {"steps": int, "median": float})
Medians = TypedDict("Medians", {"score": dict[str, Any], "curve": list[MedianPoint]})
Row = TypedDict(  # a method on House Prices; released and honest where it found a θ
    "Row",
    {
        "method": str,
        "label": str,
        "epochs": int,
        "released": NotRequired[Ratios],
        "honest": NotRequired[Ratios],
        "attacks": dict[str, Medians],
    },
)
Inputs = TypedDict("Inputs", {"honest": float, "rank": int})
Eigenvalues = TypedDict("Eigenvalues", {"primary": list[float], "harmful": list[float]})
InputPair = TypedDict(
    "InputPair",
    {"primary": Inputs, "harmful": Inputs, "eigenvalues": Eigenvalues, "kappa_m": float},
)
Curve = TypedDict(
    "Curve", {"label": str, "epochs": int, "primary": list[float], "harmful": list[float]}
)
Curves = TypedDict("Curves", {"steps": list[int], "curves": dict[str, Curve]})
Path = TypedDict("Path", {"epochs": list[int], "released": list[float], "honest": list[float]})
HousePricesFigures = TypedDict(
    "HousePricesFigures",
    {
        "pair": InputPair,
        "rows": list[Row],
        "identity": dict[str, Medians],
        "norm_ratio": Curves,
        "path": dict[str, Path],
    },
)
Median = TypedDict("Median", {"mean": float, "std": float, "median": float})
PairRatios = TypedDict("PairRatios", {"primary": Median, "harmful": Median, "rir": Median})
MeanPoint = TypedDict("MeanPoint", {"steps": int, "mean": float})
Means = TypedDict("Means", {"score": dict[str, float], "curve": list[MeanPoint]})
Count = TypedDict("Count", {"pairs": int, "large": int})
Successes = TypedDict("Successes", {"released": Count, "honest": Count})
PairRow = TypedDict(  # a method on MNIST, over the digit pairs
    "PairRow",
    {
        "name": str,
        "method": str,
        "label": str,
        "step": float | None,
        "epochs": int | None,
        "released": NotRequired[PairRatios],
        "honest": NotRequired[PairRatios],
        "successes": NotRequired[Successes],
        "attacks": dict[str, Means],
    },
)
Maps = TypedDict("Maps", {"released": list[list[float | None]], "honest": list[list[float | None]]})
Protocol = TypedDict(
    "Protocol",
    {
        "rows": list[PairRow],
        "maps": dict[str, Maps],
        "pairs": dict[str, dict[str, Any]],
        "identity": dict[str, Means],
    },
)
Protocols = TypedDict("Protocols", {"paper": Protocol, "binary": Protocol})
MnistFigures = TypedDict("MnistFigures", {"protocols": Protocols})
HousePricesSettings = TypedDict("HousePricesSettings", {"budget": int, "epochs": list[int]})
MnistSettings = TypedDict("MnistSettings", {"budget": int})

Free = dict[str, Any]
SHAPES: dict[str, tuple[Any, Any, Any]] = {  # figures, settings and data by kind (and name)
    "measure": (MeasureFigures, Free, DataPair),
    "immunize": (ImmunizeFigures, ImmunizeSettings, DataPair),
    "audit": (AuditFigures, AuditSettings, AuditData),
    "demo": (DemoFigures, DemoSettings, DataPair),
    "reproduce house-prices": (HousePricesFigures, HousePricesSettings, Free),
    "reproduce mnist": (MnistFigures, MnistSettings, Free),
}
