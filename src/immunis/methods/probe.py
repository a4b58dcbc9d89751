"""*Probe* (ours): train a network so that no linear probe reads the harmful labels."""

from __future__ import annotations

from immunis.methods import probe_network as probe
from immunis.methods.base import Method

METHOD = Method(
    "probe",
    "label-aware training of a network: nothing for a probe to read",
    network=probe.Settings,
    objective=probe.objective,
)
