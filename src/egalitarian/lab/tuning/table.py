"""The table 'tuned fairly', from the families' JSON files: what was chosen, and how it did on fresh seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from egalitarian.lab.analysis.counts import NOTHING, Count, ratio, times
from egalitarian.lab.analysis.statistics import median_and_range, quantile

Entry = Mapping[str, Any]
HEAD = ("method", "lr", "decay", "points", "inside", "fresh seeds", "passed", "gain")


class Row(NamedTuple):
    """One method's line."""

    method: str
    lr: str
    decay: str
    points: str
    inside: str
    fresh: str
    passed: str
    gain: str


def rows(results: Mapping[str, Any]) -> list[Row]:
    plain = results["methods"].get(results["plain"])
    return [_row(entry, plain, results["score"]) for entry in results["methods"].values()]


def _row(entry: Entry, plain: Entry | None, score: str) -> Row:
    best = entry["best"] or {"lr": None, "decay": None}
    lr, decay = (NOTHING if best[key] is None else f"{best[key]:g}" for key in ("lr", "decay"))
    moves = len(entry["windows"]) - 1
    tried = f"{len(entry['points'])}" + (f", {_counted(moves, 'move')}" if moves > 0 else "")
    if not entry["complete"]:
        return Row(_line(entry["title"]), lr, decay, tried, "not yet known", "partial", NOTHING, NOTHING)
    fresh, passed = _measured(entry, score), _passed(entry) if score == "epochs" else NOTHING
    return Row(_line(entry["title"]), lr, decay, tried, _inside(entry, score), fresh, passed, _gain(entry, plain, score))


def _line(title: str) -> str:
    """A title in one line, whatever a plan has."""
    return " ".join(title.split())


def _inside(entry: Entry, score: str) -> str:
    if score == "epochs" and not entry["best"]["passes"]:
        return "no point passes"
    return "yes" if entry["inside"] else "no, on the edge"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _passed(entry: Entry) -> str:
    return f"{sum(seed['crossed'] is not None for seed in entry['fresh'])} of {len(entry['fresh'])}"


def _seeds(entry: Entry) -> list[tuple[int | None, int]]:
    """The epoch at which each passed, or None, and the epochs within which it did not: all, for one that diverged."""
    budget = entry["best"]["budget"]
    return [(seed["crossed"], budget if seed["diverged"] else seed["epochs"]) for seed in entry["fresh"]]


def _measured(entry: Entry, score: str) -> str:
    if score == "epochs":
        return median_and_range(_seeds(entry))
    shares = [100 * seed["mean_train_accuracy"] for seed in entry["fresh"]]
    return f"{statistics.median(shares):.1f} % ({min(shares):.1f}–{max(shares):.1f})"


def _gain(entry: Entry, plain: Entry | None, score: str) -> str:
    """Epochs trained with the plain optimizer over the method's; or points of training accuracy more."""
    if plain is None or not plain["complete"]:
        return NOTHING
    if score == "train-accuracy":
        ours, theirs = (statistics.median(seed["mean_train_accuracy"] for seed in each["fresh"]) for each in (entry, plain))
        return f"{100 * (ours - theirs):+.1f} points"
    if any(seed["crossed"] is None for seed in plain["fresh"]):
        return NOTHING  # half way between seeds that pass and seeds that do not is no place to measure from
    gain = ratio(_median(plain), _median(entry))
    return NOTHING if gain is None else times(gain)


def _median(entry: Entry) -> Count:
    """Epochs that were trained, through the one that passes: its number, counted from 0, is no measure of work."""
    passed = sorted(float(crossed + 1) for crossed, _ in _seeds(entry) if crossed is not None)
    return quantile(passed, sorted(float(bound) for crossed, bound in _seeds(entry) if crossed is None), 0.5)


def about(results: Mapping[str, Any]) -> str:
    """What must be known to read a family's lines."""
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
    places = sorted({place for entry in entries for place in entry["spent"]})
    taken = {place: sum(entry["spent"].get(place, 0.0) for entry in entries) for place in places}
    where = "; ".join(f"{place}: {seconds / 60:.1f} minutes" for place, seconds in taken.items())
    each = results.get("steps_per_epoch")
    epochs = f" An epoch is {_counted(each, 'step')}." if each else ""
    steps = f"steps of {rules['lr_factor']:g} in lr and {rules['decay_factor']:g} in decay"
    quick = "Quick: these numbers mean nothing. " if results["quick"] else ""
    return (
        f"{quick}Experiment `{results['experiment']}`, {window} windows, {steps}. The point is {chosen}. Then {counted}."
        f"{epochs} {seeds}. {where}, summed over processes.{_without_adamw(results)}"
    )


def _without_adamw(results: Mapping[str, Any]) -> str:
    """A search among plain optimizers that leaves out the usual one proves no gain."""
    if results["score"] != "epochs" or any(method.startswith("adamw") for method in results["methods"]):
        return ""
    return " **AdamW was not searched here, so these gains are over a tuned SGD only** (docs/tuning.md)."


def _how_many(entries: Sequence[Entry], kind: str) -> str:
    """Seeds of a kind; several numbers where a file's methods are of several plans."""
    *few, most = sorted({len(entry[f"{kind}_seeds"]) for entry in entries})
    return "".join(f"{number} and " for number in few) + _counted(most, f"{kind} seed")


def markdown(found: Iterable[Mapping[str, Any]]) -> str:
    lines = [
        "# Tuned fairly",
        "",
        "Rules, and what is equal: docs/tuning.md. Gains are over the tuned plain optimizer, where no seed of it fails. "
        "Epochs count from 0. A gain is a ratio of epochs trained, each one more than its number. Inside: all neighbours "
        "of the best point were tried.",
    ]
    for results in found:
        partial = "" if results["complete"] else " (partial)"
        lines += ["", f"## {results['title']}{partial}", "", about(results), ""]
        lines += ["| " + " | ".join(HEAD) + " |", "|---" + "|---:" * 3 + "|---" + "|---:" * 3 + "|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(results)]
    return "\n".join(lines) + "\n"
