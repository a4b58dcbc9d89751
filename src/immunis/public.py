"""The public names; ``immunis`` hands them on when one is first used."""

import immunis.report.display  # noqa: F401 - enters how results are shown
from immunis.audits.audit import Audit, Effort, audit
from immunis.core.errors import (
    ImmunisError,
    InputError,
    LostPrimaryWarning,
    LostProcessError,
    NumericalError,
    OutputError,
    RankWarning,
    ScaleWarning,
    SettingsError,
)
from immunis.core.jobs import Run
from immunis.core.records import Record, __version__
from immunis.data.scale import standardised
from immunis.data.task import Task
from immunis.methods.immunize import Immunized, immunize
from immunis.report.card import write_card
from immunis.theory.gram import Gram, gram
from immunis.theory.measure import Measurement, measure
from immunis.theory.preconditioned import PreconditionedLinear
from immunis.theory.rir import relative_immunization_ratio
from immunis.theory.spectrum import Spectrum, reference_condition_number
from immunis.theory.steps import norm_ratio_curve

__all__ = [
    "Audit",
    "Effort",
    "Gram",
    "ImmunisError",
    "Immunized",
    "InputError",
    "LostPrimaryWarning",
    "LostProcessError",
    "Measurement",
    "NumericalError",
    "OutputError",
    "PreconditionedLinear",
    "RankWarning",
    "Record",
    "Run",
    "ScaleWarning",
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
    "standardised",
    "write_card",
]
