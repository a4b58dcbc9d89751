"""Adapt normalisation layers to unlabelled rows by the model's own answers, then probe.

Source-free adaptation (SHOT, TENT): each answer should be sure, and all together diverse.
"""

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Made, NotApplicableError, Searched, Settings
from immunis.attacks.reading import readings, reread
from immunis.attacks.retrain import RATES, retrain
from immunis.models.find_cut import is_norm


def features(arena: Arena, settings: Settings) -> Made:
    """Minimise the mean entropy of the head's answers less the entropy of their mean."""
    cut, head = arena.cut.copy(), arena.cut.head_layer
    regression = arena.primary is not None and arena.primary.kind == "regression"
    if head is None or head.out_features < 2 or regression:
        raise NotApplicableError("the model has no head that answers with classes")
    norms = [m for m in cut.model.modules() if is_norm(m)]
    trained = [p for norm in norms for p in norm.parameters(recurse=False)]
    if not trained:
        raise NotApplicableError("the model has no normalisation layer with parameters")
    for norm in norms:
        norm.train()

    def loss(inputs: Tensor, rows: Tensor, _: torch.Generator) -> Tensor:
        logs = cut.answers(inputs).log_softmax(1)
        whole = logs.logsumexp(0) - torch.log(torch.tensor(float(len(logs))))
        return (whole.exp() * whole).sum() - (logs.exp() * logs).sum(1).mean()

    inputs, fit = arena.train.inputs, arena.rows[0]
    return reread(
        arena, cut, retrain(arena, cut.model, trained, inputs, loss, settings["rate"], fit)
    )


SETTINGS: Searched = {"rate": RATES, "read": readings}
ATTACK = Attack(settings=SETTINGS, features=features, retrains=True, place=14)
