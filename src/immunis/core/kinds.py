"""What the figures, settings and data of each kind of record hold.

Only the check of loaded records needs these shapes, so they are plain: "*" stands for any key, "?"
ends a key that may be missing, and ``[shape]`` is a list.
"""

from typing import Any, Literal

from immunis.core.shapes import (
    AuditData,
    AuditFigures,
    DataPair,
    Definition,
    Factors,
    Free,
    ImmunizeFigures,
    Numbers,
    Sizes,
    Spectra,
    Spectrum,
)

MEASURE: Free = {"primary": Spectrum, "harmful": Spectrum, "ceiling": float, "rho": float | None}
MEASURE |= {"definition?": Definition}
MEASURE |= {"shared_ceiling?": float, "floored_ceiling?": float, "free_directions?": int}
SCALING: Any = Literal["imagenet", "clip", "inception"]
RECIPE: Free = {"data?": {"size?": int, "scaling?": SCALING}, "model?": Free}
ASKED = {"recipe?": RECIPE, "arguments?": list[str]}  # how a command was asked
AUDIT: Free = {"attacks": list[str], "budget": int, "seeds": int, "original": str}
AUDIT |= {"not_run?": dict[str, str], "anticipated?": list[str], "families?": dict[str, str]}
AUDIT |= ASKED
AUDIT |= {"plain?": str | None, "tolerance?": float, "threshold?": float | None}

NORM_RATIO = {"steps": list[int], "primary": Numbers, "harmful": Numbers}
READS = {"gradient_descent": dict[str, float], "ridge": float}  # by steps
METHOD: Free = {
    "definition?": Definition,
    "rir": Factors,
    "spectra": Spectra,
    "norm_ratio": NORM_RATIO,
}
METHOD |= {"harmful_accuracy": READS, "primary_accuracy": float, "seconds": float}

# The rows are methods. Those that found a θ hold released and honest condition numbers.
MEAN = {"mean": float, "std": float, "low": float, "high": float}
VERDICTS: Free = {"replicates": str, "holds": str, "reason": str, "failed": int}
VERDICTS |= {"definition?": {"harmful": int, "primary": int}, "moved?": int}  # numbers of runs
RATIOS = {"primary": MEAN, "harmful": MEAN, "rir": MEAN}
MEDIANS: Free = {"score": Free, "curve": [{"steps": int, "median": float}]}
ROW: Free = {"method": str, "label": str, "epochs": int, "attacks": {"*": MEDIANS}}
ROW |= {**VERDICTS, "released?": RATIOS, "honest?": RATIOS}
EIGENVALUES = {"primary": Numbers, "harmful": Numbers}
CURVES = {"steps": list[int], "curves": {"*": {"label": str, "epochs": int, **EIGENVALUES}}}
PATH = {"epochs": list[int], "released": Numbers, "honest": Numbers}
NEAR = {"median": float, "low": float, "high": float}
INPUTS = {"honest": float, "rank": int, "released": NEAR, "released_tenfold": NEAR}
PAIR = {"primary": INPUTS, "harmful": INPUTS, "eigenvalues": EIGENVALUES, "kappa_m": float}
MADE_BY: Free = {"commit": str | None, "code": str, "torch": str, "device": str, "jobs": int}
MADE_BY |= {"seconds": float}  # what computed how many of the runs
MADE: Free = {"made_by?": [MADE_BY]}
HOUSE_PRICES: Free = {"pair": PAIR, "rows": [ROW], "identity": {"*": MEDIANS}}
HOUSE_PRICES |= {"norm_ratio": CURVES, "path": {"*": PATH}, **MADE}
MEDIAN = {**MEAN, "median": float}  # over pairs of digits
PAIR_RATIOS = {"primary": MEDIAN, "harmful": MEDIAN, "rir": MEDIAN}
MEANS = {"score": dict[str, float], "curve": [{"steps": int, "mean": float}]}
COUNT = {"pairs": int, "large": int}
PAIR_ROW: Free = {"method": str, "label": str, "attacks": {"*": MEANS}}
PAIR_ROW |= {**VERDICTS, "step": float | None, "epochs": int | None, "released?": PAIR_RATIOS}
PAIR_ROW |= {"honest?": PAIR_RATIOS, "successes?": {"released": COUNT, "honest": COUNT}}
MAPS = dict.fromkeys(("released", "honest"), list[list[float | None]])
PROTOCOL: Free = {"rows": [PAIR_ROW], "maps": {"*": MAPS}, "pairs": {"*": Free}}
PROTOCOL |= {"identity": {"*": MEANS}}
PROTOCOLS = {"paper": PROTOCOL, "binary": PROTOCOL}
MNIST: Free = {"protocols": PROTOCOLS, **MADE}
# Rows whose runs all failed have no ratios and no curve. Published figures: [mean, deviation].
DEEP_MEAN = {"mean": float, "std": float}
DEEP_RATIOS = {"primary": DEEP_MEAN, "harmful": DEEP_MEAN, "rir": DEEP_MEAN}
DEEP_CURVE = {"epochs": float, "mean": float, "low": float, "high": float}
DEEP_ROW: Free = {"label": str, "method": str, "training": str, "verdict": str, "runs": int}
DEEP_ROW |= {"published": dict[str, Numbers] | None, "failed": list[str], "accuracy?": DEEP_MEAN}
DEEP_ROW |= {
    "groups?": DEEP_RATIOS,
    "full?": DEEP_RATIOS,
    "curve?": [DEEP_CURVE],
    "ridge?": DEEP_MEAN,
}
DEEP_ROW |= {"ranks?": {"*": {"low": int, "high": int}}, "definition?": dict[str, int]}
DEEP: Free = {"rows": [DEEP_ROW], "spectra": {"primary": Sizes, "harmful": Sizes}}
DEEP |= {"initial": float | None, **MADE}
DEEP_SETTINGS: Free = {"recipe_name": str, "recipe": RECIPE, "stand_in": bool, "seeds": int}
DEEP_SETTINGS |= {"groups": int, "group": int, "epochs": int, "steps": int | None}

PARALLEL: list[Any] = [NORM_RATIO, PATH]  # all their lists are of one length
SHAPES: dict[str, tuple[Any, Any, Any]] = {  # figures, settings and data by kind (and name)
    "measure": (MEASURE, Free, DataPair),
    "immunize": (ImmunizeFigures, {"method": str, **ASKED}, DataPair),
    "audit": (AuditFigures, AUDIT, AuditData),
    "demo": ({"ceiling": float, "methods": {"*": METHOD}}, {"steps": list[int]}, DataPair),
    "reproduce house-prices": (HOUSE_PRICES, {"budget": int, "epochs": list[int]}, Free),
    "reproduce mnist": (MNIST, {"budget": int}, Free),
    "reproduce deep": (DEEP, DEEP_SETTINGS, DataPair),
}
