"""What a record says, in sentences: the same words on the page and in the model card."""

from __future__ import annotations

import math
import shlex

from immunis.core.records import Record
from immunis.core.shapes import (
    CONTROL,
    MANY_MODELS,
    SCRATCH,
    AuditFigures,
    Disjoint,
    ImmunizeFigures,
    Worst,
)
from immunis.report.format import amount, number, percent, points, signed, steps_of, unit
from immunis.report.query import (
    broken,
    called,
    defences,
    defended,
    known,
    leading,
    ranks,
    reached,
    scores,
    unseen,
    untold,
    worst_share,
)

COLUMNS = (
    "highest: test score of the strongest attack; gain: points of score (or R²) of the attack that "
    "gains most over the same attack on untrained features, with its 95% interval over trainings, "
    "attackers and test rows; to original: the best attack on the model less the best on the "
    "original; keeps: the largest share of the original model's help, and the attack that keeps "
    "it; unseen attacks: those that no defence trains or stops against; cost x: steps to 90% "
    "of what the original allows, as a multiple of the original's, of the attack that gains most; "
    "not reached: not within the budget; (from scratch): the untrained copy, fine-tuned."
)
DEFINITION = (
    "Definition 3.1 of the paper calls a model immunized if (a) the condition number κ_H of the "
    "harmful task rises, (b) κ_P of the primary task does not, and (c) the primary score is kept. "
    "RIR is (a) over (b), so it can be large where (a) fails."
)


def harmful_score(record: Record, value: float) -> str:
    """Return a score of the attacker's task with its unit."""
    classes = record.data["attacker"]["kind"] == "classification"
    return f"{percent(value)}%" if classes else f"R² {number(value)}"


def change(record: Record, after: float | None, before: float | None) -> str:
    """Return a primary score and how it changed: in points of accuracy, or in R²."""
    classes = record.data["primary"]["kind"] == "classification"
    name = "primary accuracy" if classes else "primary R²"
    if after is None or before is None or not math.isfinite(after - before):
        return f"{name} not measured"
    if classes:
        return f"{name} {signed(100 * (after - before), 1)} points ({percent(after)}%)"
    return f"{name} {signed(after - before, 3)} ({number(after)})"


def kept(record: Record, name: str) -> str:
    """Return what a model's primary score lost at most, against the original and the control."""
    f: AuditFigures = record.figures
    kind, original = record.data["primary"]["kind"], record.settings["original"]
    said = []
    for other, found in f["models"][name].get("primary_change", {}).items():
        if not math.isfinite(known(found["low"]) + known(found["high"])):
            continue
        factor, digits = (100, 1) if kind == "classification" else (1, 3)
        low, high, most = (factor * x for x in (found["low"], found["high"], found["tolerance"]))
        text = f"loses at most {amount(min(0.0, found['low']), kind)} (95%: "
        text += f"{signed(low, digits)} to {signed(high, digits)})"
        few = f"; too few test rows to tell if that is more than {most:g}"
        text += {True: "", False: f", which is more than {most:g}", None: few}[found["holds"]]
        said.append(text if other == original else f"against {other} it {text}")
    return "; ".join(said)


def verdict(record: Record, name: str, called: str = "") -> str:
    """Return one audited model in one sentence: the highest score, then points, then shares."""
    called = called or name
    f: AuditFigures = record.figures
    case, original = f["worst_case"][name], record.settings["original"]
    cost = change(record, f["models"][name]["primary"], f["models"][original]["primary"])
    cost += f": {lost}" if (lost := kept(record, name)) else ""
    if broken(record, name):
        return f"{called} lost its primary task ({cost}): it is broken, not immune."
    if case["attack"] is None:
        return f"{called}: no attack could be run; {cost}."
    parts = [f"{called}: {_beside(record, name, case)}"]
    parts.append(f"the attack that gains most {_gains(record, case)}")
    parts += _compared(record, case)
    if unseen(record) and (other := case.get("unseen")) and other["attack"]:
        many = f"{other['attacks']} attack{'s' * (other['attacks'] > 1)}"
        count = f"over the {many} alone that no defence trains or stops against"
        parts.append(f"{count}, the best {_gains(record, other)}")
        parts += [] if untold(worst_share(other)) else [_keeps(other)]
    parts.append(_keeps(case))
    runs = f.get("factors", {"models": {}})["models"].get(name)
    claim = [runs["claim"]] if runs and runs["claim"] else []
    return "; ".join([*parts, cost, *claim]) + "."


def _highest(record: Record, name: str) -> str:
    """Return the highest score of any attack on a model, and the attack."""
    most = reached(record, name)
    score = harmful_score(record, most.score)
    return "not known" if most.attack is None else f"{score} by {most.attack}"


def closing(record: Record) -> str:
    """Return an audit in two lines: the highest score of any attack by model, and what is kept."""
    f: AuditFigures = record.figures
    names = [record.settings["original"], *defended(record)]
    most = ", ".join(f"{called(record, n)} {_highest(record, n)}" for n in (*names, CONTROL))
    kept = [f"{n}: {_keeps(f['worst_case'][n])}" for n in names[1:] if not broken(record, n)]
    kept += [f"{n}: broken, not immune" for n in names[1:] if broken(record, n)]
    return "\n".join([f"Highest score of any attack: {most}.", *(f"{line}." for line in kept)])


def _beside(record: Record, name: str, case: Worst) -> str:
    """Return the highest score of any attack, with the original's and the control's beside it."""
    f: AuditFigures = record.figures
    others = {"the original": record.settings["original"], "untrained features": CONTROL}
    beside = []
    for said, other in others.items():
        reached = scores(f["attacks"], other)
        if other != name and reached:
            best = max(reached, key=lambda attack: reached[attack])
            beside.append(f"{harmful_score(record, reached[best])} on {said} ({best})")
    most = f"{harmful_score(record, case['highest_accuracy'])} ({case['highest_attack']})"
    tried = f"of {case['attacks']} attacks within {steps_of(record)}"
    return ", ".join([f"the highest score {tried} is {most}", *beside])


def _gains(record: Record, case: Worst) -> str:
    """Return the attack that gains most, what it reaches, and what that is over untrained ones."""
    kind = record.data["attacker"]["kind"]
    reached = f"({case['attack']}, {harmful_score(record, case['accuracy'])})"
    gain = points(case.get("gain_interval") or {"mean": case.get("gain")}, kind)
    if gain == "–":
        return f"is {reached[1:-1]}"
    return f"{reached} gains {gain.replace('(', '(95%: ')} {unit(kind)} over untrained features"


def _compared(record: Record, case: Worst) -> list[str]:
    """Return how the best attack compares with the best on the original, where that is known."""
    kind = record.data["attacker"]["kind"]
    gap = points(case.get("to_original"), kind)
    if gap == "–":
        return []
    return [
        f"the best attack is {gap.replace('(', '(95%: ')} {unit(kind)} from the original's best"
    ]


def _keeps(case: Worst) -> str:
    """Return the largest share of the original's help that an attack keeps, or that none is."""
    if why := untold(worst_share(case)):
        return f"not enough evidence on the share of the help that an attack keeps: {why}"
    share = known(case["residual_advantage"])
    span, said = case.get("interval"), ""
    low, high = (known(span[end]) if span else math.nan for end in ("low", "high"))
    if math.isfinite(low) and math.isfinite(high) and low < high:
        said = f" (95%: {100 * low:.0f}% to {100 * high:.0f}%)".replace("-", "−")
    by = case.get("share_attack", case["attack"])
    found = f"{by} keeps {100 * share:.0f}%{said} of the original model's help".replace("-", "−")
    if 2 * case["undefined"] > case["attacks"]:
        found += f"; the original helps only {case['attacks'] - case['undefined']} of these attacks"
    return found


def lost_primary(record: Record) -> str:
    """Return that an immunized model lost its primary task, and by how much; "" if it did not."""
    if record.kind != "immunize" or record.figures["primary_score"].get("kept") is not False:
        return ""
    f: ImmunizeFigures = record.figures
    score, kind = f["primary_score"], record.data["primary"]["kind"]
    return (
        f"The model lost its primary task: {change(record, score['after'], score['before'])} on "
        f"{score['split']} data; it may lose {amount(known(score['most_lost']), kind)}."
    )


def lost_some(record: Record) -> str:
    """Return that an immunized model lost more than the tolerance but is not refused, or ""."""
    f: ImmunizeFigures = record.figures
    within = f["definition"]["score"]["holds"] if "definition" in f else None
    if within is not False or f["primary_score"].get("kept") is not True:
        return ""
    return (
        "The primary score fell by more than the tolerance; it would be refused from a loss of "
        f"{amount(known(f['primary_score']['most_lost']), record.data['primary']['kind'])} on."
    )


def command(record: Record) -> str:
    """Return the command that repeats a run from its own record; "" if none is known to."""
    arguments = record.settings.get("arguments")  # earlier records leave them out
    if arguments is None or not record.settings.get("recipe"):
        return ""
    return shlex.join(["immunis", record.kind, "record.json", *arguments])


def headline(record: Record, audited: bool = False) -> str:
    """Return the record in one sentence; ``audited``: an audit stands beside it."""
    if record.kind == "audit":
        lead, count = leading(record), len(defences(record))
        if lead is None:
            return verdict(record, record.settings["original"])
        return verdict(record, lead, f"{lead}, the best of {count} defences" if count > 1 else "")
    if record.kind == "immunize":
        f: ImmunizeFigures = record.figures
        score, rho = f["primary_score"], f["rho"]
        if lost := lost_primary(record):
            return f"{lost} Do not release it."
        unknown = "No attacker has been run against this model; immunis audit measures what an "
        start = "" if audited else unknown + "attack costs. "
        some = f" {told}" if (told := lost_some(record)) else ""
        return (
            f"{start}{record.settings['method']}: the share ρ of the harmful labels that a linear "
            f"probe explains, on the defender's own sample, goes from {number(rho['before'])} to "
            f"{number(rho['after'])}; {change(record, score['after'], score['before'])} on "
            f"{score['split']} data.{some}"
        )
    demo = record.figures
    steps = str(max(record.settings["steps"]))
    reads = {name: row["harmful_accuracy"] for name, row in demo["methods"].items()}
    best = min(reads, key=lambda name: reads[name]["gradient_descent"][steps])
    shown = (reads[name]["gradient_descent"][steps] for name in ("no defence", "frontier", best))
    bare, ceiled, least = map(percent, shown)
    return (
        f"A high ratio did not stop the attacker: after {steps} steps a probe reaches {bare}% "
        f"without a defence, {ceiled}% where the ratio is at its ceiling (RIR* = "
        f"{number(demo['ceiling'])}), and {least}% under the best defence ({best}; a "
        f"closed-form probe reaches {percent(reads[best]['ridge'])}% there)."
    )


def threat_model(record: Record) -> str:
    """Return who attacks an audited model, and with what."""
    count = record.data["attacker"]["train"].rpartition("-")[2]
    samples = f"{int(count):,} labelled samples" if count.isdecimal() and len(count) < 12 else ""
    disjoint: Disjoint = record.figures["disjoint"]
    nearest = disjoint.get("nearest") or {"suspicious": False}
    unclear = disjoint.get("shared") or nearest["suspicious"]
    checked = "not shown to be " * bool(unclear) if disjoint["checked"] else "not checked to be "
    near = f" to within {disjoint['tolerance']:g}" if "tolerance" in disjoint else ""
    alike = f"; {disjoint['alike']:,} images look alike" if disjoint.get("alike") else ""
    seeds = record.settings["seeds"]
    return (
        f"The attacker has the weights and {samples or 'labelled samples'} of their own "
        f"({checked}disjoint from the defender's{near}{alike}), and chooses settings on a fifth of "
        f"them. Every attack runs with {seeds} seed{'s' * (seeds > 1)}{_own_rows(record)}"
        f"{_trainings(record)}. "
        f"{_scored(record)}Help is the score that the original's features add to that of an "
        "untrained copy."
    )


def _own_rows(record: Record) -> str:
    """Return how many of the attacker's samples each seed has, where they have some each."""
    found = record.figures.get("factors", {}).get("attackers", {"samples": 1})
    return f", each with its own {found['rows']:,} of them," if found["samples"] > 1 else ""


def _trainings(record: Record) -> str:
    """Return which models were trained several times, where a record says so."""
    varied = record.figures.get("factors", {"models": {}})["models"]
    several = [
        f"{n} ({of['variants']})" for n, of in varied.items() if of["variants"] > 1 and n != CONTROL
    ]
    bare = varied.get(CONTROL, {"runs": 1})["runs"]
    found = [f"every training of {', '.join(several)}"] if several else []
    found += [f"{bare} untrained copies"] if bare > 1 else []
    return f" on {' and on '.join(found)}" if found else ""


def _scored(record: Record) -> str:
    """Return which test rows an audit scored, and how often final rows were opened."""
    f: AuditFigures = record.figures
    if (scored := f.get("scored")) is None:
        return ""
    if scored["half"] == "all":
        return f"All {scored['rows']:,} test rows are for development: too few for a final half. "
    told = f"Scores are on the {scored['half']} half of the test rows, {scored['rows']:,} of "
    told += f"{scored['of']:,}"
    if (final := f.get("final")) is None:
        return f"{told}, which may also have served to choose settings. "
    return f"{told}; final audits of this benchmark so far: {final['audits']}. "


def predicted(record: Record) -> str:
    """Return how the cheap figures of an audit rank with what attackers reach and pay."""
    f: AuditFigures = record.figures
    names = {"kappa_harmful": "κ_H", "rir": "RIR", "rho": "ρ"}
    found = f["predictors"]
    if found is None or not ranks(record):
        return f"not computed over fewer than {MANY_MODELS} models"
    rows = [(names.get(n, n), number(r["score"]), number(r["cost"])) for n, r in found.items()]
    return "; ".join(f"{name} {score} with score, {cost} with cost" for name, score, cost in rows)


def table_notes(record: Record) -> str:
    """Return what an audit's tables leave out: columns, controls, rank correlations."""
    f: AuditFigures = record.figures
    scratch = f["controls"][SCRATCH]
    reached = f"{percent(scratch['score']['mean'])}%" if scratch["status"] == "done" else "failed"
    unchecked = " Not checked: whether the attacker's data is disjoint from the defender's."
    return (
        f"{COLUMNS} Chance: {percent(f['chance'])}%; trained from scratch: {reached}. Rank "
        f"correlation: {predicted(record)}.{unchecked * (not f['disjoint']['checked'])}"
    )
