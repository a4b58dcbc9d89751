"""Make open-weight models hard to turn to harm, and measure how hard."""

from immunis._version import __version__
from immunis.audit import Audit, audit
from immunis.errors import (
    ImmunisError,
    InputError,
    LostProcessError,
    NumericalError,
    OutputError,
    RankWarning,
    SettingsError,
)
from immunis.extremes import Extremes, extremes
from immunis.gram import Gram, gram
from immunis.immunize import Immunized, immunize
from immunis.measure import Measurement, measure
from immunis.metrics import norm_ratio_curve, relative_immunization_ratio
from immunis.preconditioned import PreconditionedLinear
from immunis.records import Record
from immunis.spectrum import Spectrum, condition_number_interval, reference_condition_number
from immunis.tasks import Task

__all__ = [
    "Audit",
    "Extremes",
    "Gram",
    "ImmunisError",
    "Immunized",
    "InputError",
    "LostProcessError",
    "Measurement",
    "NumericalError",
    "OutputError",
    "PreconditionedLinear",
    "RankWarning",
    "Record",
    "SettingsError",
    "Spectrum",
    "Task",
    "__version__",
    "audit",
    "condition_number_interval",
    "extremes",
    "gram",
    "immunize",
    "measure",
    "norm_ratio_curve",
    "reference_condition_number",
    "relative_immunization_ratio",
]
