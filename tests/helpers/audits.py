"""Small audits, and their records without times."""

import json
import re
import warnings

from immunis import Effort, audit

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
