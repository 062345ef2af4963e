"""Which of many methods a figure shows, and what its caption says of seeds and methods that it cannot show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from egalitarian.lab.analysis import Gathered, estimate
from egalitarian.lab.config import Experiment

MOST = 8
"""Methods that one panel can show by curves."""


def choose(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str], most: int = MOST) -> list[str]:
    """All methods that were run, in order; of more than `most` the first, and the best of each kind, at most so many."""
    shown = [name for name in methods if any(gathered.of(each.name, name) for each in experiments)]
    if len(shown) <= most:
        return shown
    best: dict[tuple[str, ...], str] = {}
    for name in sorted(shown, key=lambda name: _rank(gathered, experiments, name)):
        best.setdefault(_kind(experiments, name), name)
    kept = dict.fromkeys([*best.values()][: most - (shown[0] not in best.values())])
    return [name for name in shown if name in kept or name == shown[0]]


def _kind(experiments: Sequence[Experiment], method: str) -> tuple[str, ...]:
    """A method's optimizer and its transforms."""
    own = next(each.method(method) for each in experiments if method in each.methods)
    return (own.optim.optimizer, (own.hidden or own.optim).optimizer, *(link.kind for link in own.transform))


def _rank(gathered: Gathered, experiments: Sequence[Experiment], method: str) -> tuple[float, float]:
    """Smaller is better: the median epochs to the threshold, multiplied over experiments; then the best accuracy."""
    epochs, accuracy = 0.0, 0.0
    for experiment in experiments:
        runs = gathered.of(experiment.name, method)
        if experiment.measure.has_threshold:
            median = estimate(runs).settled_median
            epochs += math.log(median.value + 1) if median is not None and median.is_exact else math.inf
        accuracy += max((run.outcome.test_accuracy or 0.0 for run in runs), default=0.0)
    return epochs, -accuracy


def chosen_of(count: int, most: int) -> str:
    """What a caption says if `choose` leaves methods out; empty if it does not."""
    if count <= most:
        return ""
    return f"Of {count} methods it shows the first, and the best of each optimizer with each kind of transform."


def remarks_of(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> str:
    """One sentence for each experiment that has something to remark; empty if none has."""
    found = [(experiment.title, "; ".join(_parts(gathered, experiment, methods))) for experiment in experiments]
    return " ".join(f"{title}: {parts}." for title, parts in found if parts)


def _parts(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for method in methods:
        if method in experiment.methods and (said := _said(gathered, experiment, method)):
            alike.setdefault(said, []).append(experiment.method(method).title)
    if len(alike.get("not run", ())) == len([method for method in methods if method in experiment.methods]):
        yield "not run"
        return
    for said, titles in alike.items():
        yield f"{said}: {', '.join(f'“{title}”' if ',' in title else title for title in titles)}"


def _said(gathered: Gathered, experiment: Experiment, method: str) -> str:
    """How many seeds pass, if not all do, and whether some are unfinished."""
    seeds = gathered.of(experiment.name, method)
    found = estimate(seeds)
    if not seeds:
        return "not run"
    open_ = f", {found.unfinished} unfinished" if found.unfinished else ""
    lost = f", {found.diverged} diverged" if found.diverged else ""
    if experiment.measure.has_threshold and found.failed:
        return f"{found.passed} of {found.n} seeds pass{lost}{open_}"
    return f"{found.n} seed{'s' * (found.n != 1)}{lost}{open_}" if lost or open_ else ""
