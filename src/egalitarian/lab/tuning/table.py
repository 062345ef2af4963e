"""The table 'tuned fairly', from the families' results files: the chosen points and the results of the fresh seeds.

Each method is compared with every stock optimizer by its fresh seeds, so that no choice of a baseline can flatter it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from egalitarian.lab.analysis import AHEAD, BEHIND, LEVEL, NOTHING, FreshCost, MethodCost, Side, times
from egalitarian.lab.config import SpecError
from egalitarian.lab.tuning.results import file_suffix, read_results

Entry = Mapping[str, Any]
OTHER_HARDWARE = "not on the same hardware"
FEW_READINGS = 20
"""A median of fewer readings is coarse, which a table says."""


def all_results(folder: Path, ending: str, order: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The results of every family in the folder, the plan's order first, and a message for each file that is damaged.

    Args:
        folder: the results files.
        ending: of their names: "" for those of the plan, see `file_suffix`.
        order: the plan's families.
    """
    found, messages = [], []
    for path in sorted(folder.glob("tuned-*.json")):
        try:
            found.append(read_results(path))
        except SpecError as error:
            messages.append(f"Left out of the table: {error}")
    ranks = {name: rank for rank, name in enumerate(order)}
    own = [each for each in found if file_suffix(each) == ending and each["methods"]]
    return sorted(own, key=lambda each: ranks.get(each["family"], len(ranks))), messages


def epochs_of(entry: Entry, name: str) -> FreshCost:
    """Passes over the data through the reading that passed the threshold, by fresh seed of an experiment."""
    readings = entry["rules"]["fresh_readings"]
    crossed = [math.inf if seed["crossed"] is None else seed["crossed"] + 1 for seed in entry["fresh"][name]]
    return FreshCost(tuple(each / readings for each in crossed), entry["best"]["budget"] / readings)


def errors_of(entry: Entry, name: str) -> FreshCost:
    """Shares of training points that were wrong, averaged over the epochs, in percent."""
    return FreshCost(tuple(100 * (1 - seed["mean_train_accuracy"]) for seed in entry["fresh"][name]), 100.0)


def cost_of(results: Mapping[str, Any], entry: Entry, name: str) -> FreshCost:
    """By the family's score."""
    return epochs_of(entry, name) if results["score"] == "epochs" else errors_of(entry, name)


def seconds_of(results: Mapping[str, Any], entry: Entry, name: str) -> FreshCost | None:
    """Seconds of training to the threshold, one seed's share of its batch; None if they are not known or not counted."""
    seconds = entry["seconds"].get(name)
    if seconds is None or results["score"] != "epochs":
        return None
    failed = [math.isinf(each) for each in epochs_of(entry, name).seeds]
    both = list(zip(seconds["seeds"], failed, strict=True))
    needed = tuple(math.inf if fails else each for each, fails in both)
    return FreshCost(needed, max(seconds["seeds"]), seconds["hardware"])


def compared(results: Mapping[str, Any], name: str) -> list[MethodCost]:
    """The methods of a family whose fresh seeds are complete, with what they needed."""
    methods = {method: entry for method, entry in results["methods"].items() if entry["complete"]}
    return [
        MethodCost(method, " ".join(entry["title"].split()), _side(results, method), cost_of(results, entry, name))
        for method, entry in methods.items()
    ]


def _side(results: Mapping[str, Any], method: str) -> Side:
    if method == results["ours"]:
        return "ours"
    return "stock" if method in results["stock"] else "form" if method in results["forms"] else "rival"


def unit_of(results: Mapping[str, Any]) -> str:
    """What is counted."""
    return "epochs" if results["score"] == "epochs" else "mean training error, %"


Measure = Callable[[Mapping[str, Any], Entry, str], FreshCost | None]


def stock_costs(results: Mapping[str, Any], name: str, measure: Measure) -> dict[str, FreshCost]:
    """What each stock optimizer needed, the smallest median first; empty while one of them is missing."""
    entries = {method: results["methods"].get(method) for method in results["stock"]}
    if any(entry is None or not entry["complete"] for entry in entries.values()):
        return {}
    measured = {method: measure(results, entry, name) for method, entry in entries.items() if entry is not None}
    known = {method: cost for method, cost in measured.items() if cost is not None}
    fastest = sorted(known, key=lambda method: (known[method].median, known[method].failed))
    return {method: known[method] for method in fastest} if len(known) == len(entries) else {}


class TunedRow(NamedTuple):
    """The cells of one method, in the order of `COLUMNS`."""

    method: str
    lr: str
    decay: str
    third: str
    points: str
    inside: str
    fresh: str
    passed: str
    against: str
    seconds: str
    against_in_seconds: str


COLUMNS = {
    "method": "method",
    "lr": "lr",
    "decay": "decay",
    "third": "third knob",
    "points": "points",
    "inside": "inside",
    "fresh": "epochs",
    "passed": "passed",
    "against": "against the stock optimizers",
    "seconds": "seconds",
    "against_in_seconds": "against them in seconds",
}
"""The headings of a row's cells."""


def headings(results: Mapping[str, Any]) -> list[str]:
    """Of the columns of a family's table."""
    return list({**COLUMNS, "fresh": unit_of(results)}.values())


def rows(results: Mapping[str, Any], name: str) -> list[TunedRow]:
    """One row for each method of a family's results, with the fresh seeds of one of its experiments."""
    return [_row(results, method, name) for method in results["methods"]]


def _row(results: Mapping[str, Any], method: str, name: str) -> TunedRow:
    entry, ours = results["methods"][method], " (ours)" if results["ours"] == method else ""
    title = " ".join(entry["title"].split()) + ours  # a plan's title may have several lines
    point = entry["best"] or {"lr": None, "decay": None, "third": ""}
    lr, decay = (NOTHING if point[key] is None else f"{point[key]:g}" for key in ("lr", "decay"))
    tried = f"{len(entry['points'])}" + (f", {entry['beyond']} beyond an edge" if entry["beyond"] else "")
    first = (title, lr, decay, point["third"] or NOTHING, tried)
    if not entry["complete"]:
        return TunedRow(*first, _inside(results, entry), "partial", *[NOTHING] * 4)
    cost, seconds = cost_of(results, entry, name), seconds_of(results, entry, name)
    passed = f"{len(cost.seeds) - cost.failed} of {len(cost.seeds)}" if results["score"] == "epochs" else NOTHING
    return TunedRow(
        *first,
        _inside(results, entry),
        cost.text(),
        passed,
        _against_stock(results, method, name, cost_of),
        NOTHING if seconds is None else seconds.text(".2g"),
        _against_stock(results, method, name, seconds_of),
    )


def _inside(results: Mapping[str, Any], entry: Entry) -> str:
    if not entry["searched"]:
        return "not yet known"
    if results["score"] == "epochs" and not entry["best"]["passes"]:
        return "no point passes"
    return "yes" if entry["inside"] else "no, on the edge"


def _against_stock(results: Mapping[str, Any], method: str, name: str, measure: Measure) -> str:
    """Ahead of every stock optimizer, behind one of them, or level; then the ratio to their smallest median.

    Level verdicts have the share of pairs won against that optimizer, since ranges of many seeds nearly always overlap.
    """
    cost, stock = measure(results, results["methods"][method], name), stock_costs(results, name, measure)
    if cost is None or not stock or method in stock:
        return NOTHING
    if len({cost.hardware, *(each.hardware for each in stock.values())}) > 1:
        return OTHER_HARDWARE
    words = [cost.against(each) for each in stock.values()]
    word = BEHIND if BEHIND in words else AHEAD if set(words) == {AHEAD} else LEVEL
    fastest = next(iter(stock.values()))
    finite = cost.median and not math.isinf(cost.median) and not math.isinf(fastest.median)
    ratio = [times(fastest.median / cost.median)] if finite else []
    won = [f"{cost.pairs_won(fastest):.0%} of pairs"] if word == LEVEL else []
    return ", ".join([word, *ratio, *won])


class FormScore(NamedTuple):
    """How a form of the method does over all families, by its tuning seeds."""

    form: str
    worst: float
    """The largest ratio to the best of the forms in a family."""
    product: float
    """Of all ratios."""


def rank_forms(every: Sequence[Mapping[str, Any]]) -> list[FormScore]:
    """The forms, the one first that the rules call ours: the smallest worst ratio, then the smallest product.

    A ratio is of median passes over the data, or of mean training errors. A form with more failed seeds than the best of
    its family has an infinite one. Empty unless all forms were searched in every family.
    """
    forms: list[str] = list(dict.fromkeys(form for results in every for form in results["forms"]))
    if any(not results["methods"].get(form, {}).get("searched") for results in every for form in forms):
        return []
    ratios = [_ratios(results, forms) for results in every]
    scores = [FormScore(form, max(own[form] for own in ratios), math.prod(own[form] for own in ratios)) for form in forms]
    return sorted(scores, key=lambda score: (score.worst, score.product))


def _ratios(results: Mapping[str, Any], forms: Sequence[str]) -> dict[str, float]:
    """Each form's tuning seeds at its best point against the best form's."""
    found: dict[str, tuple[int, float]] = {}
    for form in forms:
        entry = results["methods"][form]
        (point,) = [each for each in entry["points"] if each["position"] == entry["best"]["position"]]
        failed = sum(seed["crossed"] is None for seed in point["seeds"]) if results["score"] == "epochs" else 0
        needed = 1 - point["mean_train_accuracy"]
        if results["score"] == "epochs":
            needed = math.inf if point["median"] is None else (point["median"] + 1) / entry["rules"]["readings"]
        found[form] = failed, needed
    fewest, least = min(found.values())
    equal = {form: 1.0 for form, (failed, needed) in found.items() if (failed, needed) == (fewest, least)}
    return {form: math.inf if failed > fewest else needed / least for form, (failed, needed) in found.items()} | equal


def about(results: Mapping[str, Any], name: str) -> str:
    """The paragraph above a table: experiment, rules, seeds, hardware."""
    entries = list(results["methods"].values())
    rules = entries[0]["rules"]
    if results["score"] == "epochs":
        share = f"{rules['validation']:.0%} of the test points"
        chosen = f"chosen by the epochs until accuracy on a validation split ({share}) is past {results['threshold']:.0%}"
        counted = f"fresh seeds count epochs until test accuracy is past {results['threshold']:.0%}: median (range)"
    else:
        chosen = "chosen by the mean training accuracy over the epochs"
        counted = "fresh seeds have their mean training error over the epochs: median (range)"
    first = next(iter(results["titles"]))
    taken = "" if name == first else f" at the points of `{first}`"
    seeds = ", ".join(_counted(len(entries[0][f"{kind}_seeds"]), f"{kind} seed") for kind in ("tuning", "fresh"))
    each = results.get("steps_per_pass")
    epochs = f" An epoch is {_counted(each, 'step')}." if each else ""
    readings = rules["fresh_readings"]
    read = f" Accuracy is read {readings} times in each." if readings > 1 else ""
    stock = ""
    for best in list(stock_costs(results, name, cost_of))[:1]:
        stock = f" The stock optimizer with the smallest median is {' '.join(results['methods'][best]['title'].split())}."
    medians = [cost_of(results, entry, name).median for entry in entries if entry["complete"]]
    if results["score"] == "epochs" and min(medians, default=math.inf) * readings < FEW_READINGS:
        stock += f" The smallest median of all spans fewer than {FEW_READINGS} readings."
    quick = "Quick: these numbers mean nothing. " if results["quick"] else ""
    return (
        f"{quick}Experiment `{name}`{taken}. The point is {chosen}. Then {counted}.{epochs}{read} {seeds}.{stock} "
        f"{_spent(entries)}, summed over processes."
    )


def _spent(entries: Sequence[Entry]) -> str:
    machines = sorted({machine for entry in entries for machine in entry["spent"]})
    spent = {machine: sum(entry["spent"].get(machine, 0.0) for entry in entries) for machine in machines}
    return "; ".join(f"{machine}: {seconds / 60:.1f} minutes" for machine, seconds in spent.items())


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
