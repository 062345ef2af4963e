"""Chooses which of many methods a figure shows, and tells its caption what seeds and methods are missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from egalitarian.lab.analysis import Gathered, estimate
from egalitarian.lab.config import Experiment

MOST = 8
"""The largest number of methods whose curves one panel shows."""


def choose(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str], most: int = MOST) -> list[str]:
    """The methods that were run, in order. Of more than `most`, the first and the best of each kind, up to `most`."""
    shown = [name for name in methods if any(gathered.of(each.name, name) for each in experiments)]
    if len(shown) <= most:
        return shown
    best: dict[tuple[str, ...], str] = {}
    for name in sorted(shown, key=lambda name: _rank(gathered, experiments, name)):
        best.setdefault(_kind(experiments, name), name)
    kept = dict.fromkeys([*best.values()][: most - (shown[0] not in best.values())])
    return [name for name in shown if name in kept or name == shown[0]]


def _kind(experiments: Sequence[Experiment], method: str) -> tuple[str, ...]:
    """A method's kind: its optimizers and its transforms."""
    own = next(each.method(method) for each in experiments if method in each.methods)
    return (own.optim.optimizer, (own.hidden or own.optim).optimizer, *(link.kind for link in own.transform))


def _rank(gathered: Gathered, experiments: Sequence[Experiment], method: str) -> tuple[float, float]:
    """A key to sort by, best first: the product of the median epochs over experiments, then the best accuracy."""
    epochs, accuracy = 0.0, 0.0
    for experiment in experiments:
        runs = gathered.of(experiment.name, method)
        if experiment.measure.has_threshold:
            median = estimate(runs).settled_median
            epochs += math.log(median.value + 1) if median is not None and median.is_exact else math.inf
        accuracy += max((run.outcome.test_accuracy or 0.0 for run in runs), default=0.0)
    return epochs, -accuracy


def chosen_of(count: int, most: int) -> str:
    """The sentence for a caption if `choose` leaves methods out; empty if not."""
    if count <= most:
        return ""
    return f"Of {count} methods it shows the first, and the best of each optimizer with each kind of transform."


def remarks_of(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> str:
    """One sentence for each experiment with missing, failed or unfinished seeds; empty if there are none."""
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
    """How many seeds pass, have diverged or are unfinished; empty if there is nothing to say."""
    seeds = gathered.of(experiment.name, method)
    found = estimate(seeds)
    if not seeds:
        return "not run"
    open_ = f", {found.unfinished} unfinished" if found.unfinished else ""
    lost = f", {found.diverged} diverged" if found.diverged else ""
    if experiment.measure.has_threshold and found.failed:
        return f"{found.passed} of {found.n} seeds pass{lost}{open_}"
    return f"{found.n} seed{'s' * (found.n != 1)}{lost}{open_}" if lost or open_ else ""
