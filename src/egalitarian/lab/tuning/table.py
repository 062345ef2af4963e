"""The table 'tuned fairly', from the families' results files: the chosen points and the results of the fresh seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from egalitarian.lab.analysis import NOTHING, Count, median_and_range, quantile, ratio, times
from egalitarian.lab.config import OLD_FAST, OLD_VERSION, SpecError, current_title
from egalitarian.lab.tuning.results import file_suffix, read_results

Entry = Mapping[str, Any]
COLUMNS = ("method", "lr", "decay", "points", "inside", "fresh seeds", "passed", "gain")


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
            found.append(_in_new_titles(read_results(path)))
        except SpecError as error:
            messages.append(f"Left out of the table: {error}")
    ranks = {name: rank for rank, name in enumerate(order)}
    own = [each for each in found if file_suffix(each) == ending and each["methods"]]
    return sorted(own, key=lambda each: ranks.get(each["family"], len(ranks))), messages


def _in_new_titles(found: dict[str, Any]) -> dict[str, Any]:
    """An older version's file with the present titles."""
    methods = {name: {**entry, "title": current_title(entry["title"])} for name, entry in found["methods"].items()}
    return {**found, "methods": methods}


class TunedRow(NamedTuple):
    """The cells of one method, in the order of `COLUMNS`."""

    method: str
    lr: str
    decay: str
    points: str
    inside: str
    fresh: str
    passed: str
    gain: str


def rows(results: Mapping[str, Any]) -> list[TunedRow]:
    """One row for each method of a family's results."""
    plain = results["methods"].get(results["plain"])
    return [_row(entry, plain, results["score"]) for entry in results["methods"].values()]


def _row(entry: Entry, plain: Entry | None, score: str) -> TunedRow:
    title = " ".join(entry["title"].split())  # a plan's title may have several lines
    best = entry["best"] or {"lr": None, "decay": None}
    lr, decay = (NOTHING if best[key] is None else f"{best[key]:g}" for key in ("lr", "decay"))
    moves = len(entry["windows"]) - 1
    tried = f"{len(entry['points'])}" + (f", {_counted(moves, 'move')}" if moves > 0 else "")
    if not entry["complete"]:
        return TunedRow(title, lr, decay, tried, "not yet known", "partial", NOTHING, NOTHING)
    fresh, passed = _measured(entry, score), _passed(entry) if score == "epochs" else NOTHING
    return TunedRow(title, lr, decay, tried, _inside(entry, score), fresh, passed, _gain(entry, plain, score))


def _inside(entry: Entry, score: str) -> str:
    if score == "epochs" and not entry["best"]["passes"]:
        return "no point passes"
    return "yes" if entry["inside"] else "no, on the edge"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _passed(entry: Entry) -> str:
    return f"{sum(seed['crossed'] is not None for seed in entry['fresh'])} of {len(entry['fresh'])}"


def _seeds(entry: Entry) -> list[tuple[int | None, int]]:
    """For each fresh seed the epoch that passed, or None, and the epochs that did not: the budget if it diverged."""
    budget = entry["best"]["budget"]
    return [(seed["crossed"], budget if seed["diverged"] else seed["epochs"]) for seed in entry["fresh"]]


def _measured(entry: Entry, score: str) -> str:
    if score == "epochs":
        return median_and_range(_seeds(entry))
    shares = [100 * seed["mean_train_accuracy"] for seed in entry["fresh"]]
    return f"{statistics.median(shares):.1f} % ({min(shares):.1f}–{max(shares):.1f})"


def _gain(entry: Entry, plain: Entry | None, score: str) -> str:
    """The plain optimizer's epochs over the method's, or the difference of training accuracies in points."""
    if plain is None or not plain["complete"]:
        return NOTHING
    if score == "train-accuracy":
        ours, theirs = (statistics.median(seed["mean_train_accuracy"] for seed in each["fresh"]) for each in (entry, plain))
        return f"{100 * (ours - theirs):+.1f} points"
    if any(seed["crossed"] is None for seed in plain["fresh"]):
        return NOTHING  # a median over seeds that pass and seeds that do not is no baseline
    gain = ratio(_median(plain), _median(entry))
    return NOTHING if gain is None else times(gain)


def _median(entry: Entry) -> Count:
    """Epochs trained, including the one that passes: one more than its number, which counts from 0."""
    passed = sorted(float(crossed + 1) for crossed, _ in _seeds(entry) if crossed is not None)
    return quantile(passed, sorted(float(bound) for crossed, bound in _seeds(entry) if crossed is None), 0.5)


def about(results: Mapping[str, Any]) -> str:
    """The paragraph above a family's rows: experiment, rules, seeds, hardware."""
    entries = list(results["methods"].values())
    rules = entries[0]["rules"]
    sides = sorted({entry["rules"]["size"] for entry in entries})
    window = " and ".join(f"{side} x {side}" for side in sides) + (" and no decay" if rules["no_decay"] else "")
    if results["score"] == "epochs":
        share = f"{rules['validation']:.0%} of the test points"
        chosen = f"chosen by the epochs until accuracy on a validation split ({share}) is past {results['threshold']:.0%}"
        counted = f"fresh seeds count epochs until test accuracy is past {results['threshold']:.0%}: median (range)"
    else:
        chosen = "chosen by the mean training accuracy over the epochs"
        counted = "fresh seeds have their mean training accuracy over the epochs: median (range)"
    seeds = ", ".join(_how_many(entries, kind) for kind in ("tuning", "fresh"))
    machines = sorted({machine for entry in entries for machine in entry["spent"]})
    spent = {machine: sum(entry["spent"].get(machine, 0.0) for entry in entries) for machine in machines}
    where = "; ".join(f"{machine}: {seconds / 60:.1f} minutes" for machine, seconds in spent.items())
    each = results.get("steps_per_epoch")
    epochs = f" An epoch is {_counted(each, 'step')}." if each else ""
    steps = f"steps of {rules['lr_factor']:g} in lr and {rules['decay_factor']:g} in decay"
    quick = "Quick: these numbers mean nothing. " if results["quick"] else ""
    return (
        f"{quick}Experiment `{results['experiment']}`, {window} windows, {steps}. The point is {chosen}. Then {counted}."
        f"{epochs} {seeds}. {where}, summed over processes.{_of_version_1(results)}{_without_adamw(results)}"
    )


def _of_version_1(results: Mapping[str, Any]) -> str:
    """A label of older entries, which do not say how they took the polar factor."""
    entries = results["methods"].values()
    old = [" ".join(entry["title"].split()) for entry in entries if "polar" not in entry]
    which = "all methods" if len(old) == len(entries) else "; ".join(old)
    return f" Tuned by version {OLD_VERSION}, with polar factors {OLD_FAST} on a GPU: {which}." if old else ""


def _without_adamw(results: Mapping[str, Any]) -> str:
    """A warning where the usual optimizer is missing: then there is no gain over a tuned optimizer to claim."""
    if results["score"] != "epochs" or any(method.startswith("adamw") for method in results["methods"]):
        return ""
    return " **AdamW was not searched here, so these gains are over a tuned SGD only** (docs/tuning.md)."


def _how_many(entries: Sequence[Entry], kind: str) -> str:
    """The number of seeds of a kind; several numbers where a file's entries are of several plans."""
    *few, most = sorted({len(entry[f"{kind}_seeds"]) for entry in entries})
    return "".join(f"{number} and " for number in few) + _counted(most, f"{kind} seed")
