"""Small audits, and their records without times."""

import json
import re
import warnings

from immunis import Effort, audit
from immunis.core.packing import packed

FEW = ["ridge", "knn"]


def run(models, tasks, attacks=FEW, seeds=3, trials=None, defender=None, transfer=(), **where):
    effort = Effort(seeds, 20, trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(
            models, tasks.primary, tasks.attacker, transfer, attacks, defender=defender,
            effort=effort, run=where,
        )  # fmt: skip


def timeless(result):
    """A record's JSON without what may differ from run to run."""
    values = json.loads(result.to_json())
    for key in ("created", "seconds", "commit"):
        values.pop(key)
    values["figures"].pop("seconds")
    return re.sub(r'"seconds": [^,}]*', '"seconds": 0', json.dumps(values))


def curve(*points):
    """Points of (steps, validation, test)."""
    keys = ("steps", "validation", "test")
    rest = {"samples": 1, "flops": 1.0, "seconds": 0.0}
    return [{**rest, **dict(zip(keys, p, strict=True))} for p in points]


def done(hits, score=None):
    """What an attack returned that answered the test rows like this."""
    score = float(hits.mean()) if score is None else score
    return {
        "status": "done", "curve": curve((1, 0.5, score)), "settings": {}, "trials": 1, "runs": 1,
        "hits": None if hits is None else packed(hits), "search_flops": 1.0, "seconds": 0.1,
    }  # fmt: skip
