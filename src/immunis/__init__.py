"""Make open-weight models hard to turn to harm, and measure how hard."""

from immunis.audits.audit import Audit, Effort, audit
from immunis.core.errors import (
    ImmunisError,
    InputError,
    LostProcessError,
    NumericalError,
    OutputError,
    RankWarning,
    SettingsError,
)
from immunis.core.jobs import Run
from immunis.core.records import Record
from immunis.core.version import __version__
from immunis.data.task import Task
from immunis.methods.immunize import Immunized, immunize
from immunis.theory.descent import norm_ratio_curve
from immunis.theory.gram import Gram, gram
from immunis.theory.measure import Measurement, measure
from immunis.theory.preconditioned import PreconditionedLinear
from immunis.theory.rir import relative_immunization_ratio
from immunis.theory.spectrum import Spectrum, reference_condition_number

__all__ = [
    "Audit",
    "Effort",
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
    "Run",
    "SettingsError",
    "Spectrum",
    "Task",
    "__version__",
    "audit",
    "gram",
    "immunize",
    "measure",
    "norm_ratio_curve",
    "reference_condition_number",
    "relative_immunization_ratio",
]
