"""From a model to its card in under a minute: train a small network, immunize it, audit it.

python examples/quickstart.py [FOLDER]
"""

import sys
from pathlib import Path

from immunis import audit, immunize
from immunis.data.sources import digit_parity
from immunis.models.zoo import pretrained_mlp
from immunis.report.card import write_card


def main(folder: Path) -> None:
    """Write the audit's record and card into a folder."""
    tasks = digit_parity(shots=60)  # primary: ten digits; harmful: odd or even
    model = pretrained_mlp(tasks.primary, (128, 64))
    defended = immunize(model, tasks.primary, tasks.harmful, method="erase", strength=1e-3)
    result = audit(
        {"original": model, "erase": defended},
        tasks.primary,
        tasks.attacker,  # samples of the attacker's own
        attacks="quick",
        defender=tasks.harmful,  # must share none of them, and the audit checks that
        effort={"seeds": 2},
    )
    print(result)
    folder.mkdir(parents=True, exist_ok=True)
    record = result.record.save(folder / "record.json")
    card = write_card(folder / "card.html", result.record)
    print(f"written: {record}, {card}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "immunis-runs/quickstart"))
