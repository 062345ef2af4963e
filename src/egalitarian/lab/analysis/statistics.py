"""Statistics over the seeds of one method: epochs to the threshold, accuracies, the cost of training.

A seed that did not pass has a bound: the epochs within which it did not pass. It counts as larger than every seed that
passed, and is never left out. If half of the seeds or more did not pass, the median is "> N": N is their smallest bound. If
any seed did not pass, the largest of the range is "> N". A seed that was trained for fewer epochs than others needed might
still pass before them: a median that this could change is a bound as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from egalitarian.lab.analysis.counts import Count, in_percent, quantile
from egalitarian.lab.analysis.reading import RunSummary, bound_of, busy_seconds
from egalitarian.lab.runs import Outcome


class Quartiles(NamedTuple):
    """The middle of a distribution."""

    lower: float
    median: float
    upper: float


@dataclass(frozen=True)
class Estimate:
    """Epochs (or steps) to the threshold over the seeds of one method. Without seeds, `n` is 0 and the median is None."""

    n: int
    passed: int
    diverged: int
    unfinished: int
    """Seeds that did not pass, with epochs of their budget left: they may still pass."""
    median: Count | None
    low: Count | None
    high: Count | None
    lower_quartile: Count | None
    upper_quartile: Count | None
    slowest: float | None
    """The largest of the seeds that passed."""
    bound: float | None
    """The smallest number of epochs within which a seed did not pass."""

    @property
    def failed(self) -> int:
        """Seeds that did not pass, for any reason."""
        return self.n - self.passed

    @property
    def settled_median(self) -> Count | None:
        """The median; None if it is a bound that unfinished seeds may still change."""
        open_bound = self.median is not None and not self.median.is_exact and self.unfinished
        return None if open_bound else self.median

    @property
    def quartiles(self) -> Quartiles | None:
        """None if one of them is only a bound."""
        found = (self.lower_quartile, self.median, self.upper_quartile)
        exact = [count.value for count in found if count is not None and count.is_exact]
        return Quartiles(*exact) if len(exact) == len(found) else None

    @property
    def spread(self) -> str:
        """The text of the range: 10–40, or 10 to > 1000."""
        if self.low is None or self.high is None:
            return ""
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}{'–' if self.high.is_exact else ' to '}{self.high}"

    def __str__(self) -> str:
        if self.median is None:
            return "not run"
        spread = f" ({self.spread})" if self.n > 1 and self.low != self.high else ""
        return f"{self.median}{spread}{', unfinished' if self.unfinished else ''}"


def estimate(seeds: Sequence[RunSummary], steps: int | None = None) -> Estimate:
    """Epochs to the threshold over seeds, counted from 0; with `steps` per epoch, steps through the epoch that passed."""
    states = [seed.state for seed in seeds]
    epochs = [(seed.outcome.crossed, seed.bound) for seed in seeds]
    if steps is not None:
        epochs = [(None if crossed is None else steps * (crossed + 1), steps * bound) for crossed, bound in epochs]
    return _estimate(epochs, diverged=states.count("diverged"), unfinished=states.count("unfinished"))


def epochs_to_threshold(outcomes: Sequence[Outcome], budget: int) -> Estimate:
    """The same from the outcomes of seeds with one budget. Seeds that stopped early are not marked as unfinished."""
    return _estimate([(outcome.crossed, bound_of(outcome, budget)) for outcome in outcomes])


def median_and_range(seeds: Sequence[tuple[int | None, int]]) -> str:
    """`20 (10–40)`, `20 (10 to > 1000)`, `> 1000 (10 to > 1000)`.

    Args:
        seeds: for each the epoch that passed, or None, and the epochs that were trained.
    """
    return str(_estimate(seeds))


def _estimate(seeds: Sequence[tuple[int | None, int]], diverged: int = 0, unfinished: int = 0) -> Estimate:
    """From the epoch that passed (or None) and the bound of each seed."""
    passed = sorted(float(crossed) for crossed, _ in seeds if crossed is not None)
    bounds = sorted(float(bound) for crossed, bound in seeds if crossed is None)
    shares = (0.5, 0.0, 1.0, 0.25, 0.75)
    middle, low, high, lower, upper = [quantile(passed, bounds, share) if seeds else None for share in shares]
    ends = (max(passed, default=None), min(bounds, default=None))
    return Estimate(len(seeds), len(passed), diverged, unfinished, middle, low, high, lower, upper, *ends)


class Range(NamedTuple):
    """An accuracy of one run, and its smallest and largest value within the run."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Accuracy:
    """An accuracy over the runs of one method. Without a run that counts, `n` is 0 and the median is None."""

    n: int
    """Runs that count: those that were trained for their whole budget."""
    diverged: int
    others: int
    """Runs that stopped earlier and did not diverge."""
    median: float | None
    low: float | None
    high: float | None
    quartiles: Quartiles | None = None

    @property
    def spread(self) -> str:
        """The text of the range, in percent."""
        if self.low is None or self.high is None:
            return ""
        ends = [in_percent(end) for end in (self.low, self.high)]
        return "–".join(dict.fromkeys(ends))

    def __str__(self) -> str:
        lost = f"{self.diverged} diverged" if self.diverged else ""
        if self.median is None:
            return lost
        spread = f" ({self.spread})" if "–" in self.spread else ""
        return f"{in_percent(self.median)}{spread}{', ' * bool(lost)}{lost}"


def final_accuracy(seeds: Sequence[RunSummary]) -> Accuracy:
    """Test accuracy after the last epoch of full-length runs. The range is over the last tenth of the epochs of each.

    A run can also be of full length because it did not pass, or passed only at its end. If other runs stopped soon after
    they passed, such a run would bias the median. It then counts only if it has the first seed, which is always trained to
    the end.
    """
    full = [seed for seed in seeds if seed.full]
    if any(seed.outcome.crossed is not None and not seed.full and not seed.outcome.diverged for seed in seeds):
        first = min(seed.seed for seed in seeds)
        full = [seed for seed in full if seed.extended or seed.seed == first]
    return _accuracy(seeds, [_final(seed) for seed in full])


def mean_train_accuracy(seeds: Sequence[RunSummary]) -> Accuracy:
    """The mean of training accuracy over all epochs of full-length runs. The range is over seeds."""
    means = [seed.mean_train_accuracy for seed in seeds if seed.full]
    return _accuracy(seeds, [None if mean is None else Range(mean, mean, mean) for mean in means])


def _final(seed: RunSummary) -> Range | None:
    accuracy = seed.outcome.test_accuracy
    return None if accuracy is None or seed.end is None else Range(accuracy, *seed.end)


def _accuracy(seeds: Sequence[RunSummary], full: Sequence[Range | None]) -> Accuracy:
    values = [value for value in full if value is not None]
    diverged = sum(seed.outcome.diverged for seed in seeds)
    counts = (len(values), diverged, len(seeds) - len(values) - diverged)
    if not values:
        return Accuracy(*counts, None, None, None)
    ends = (min(value.low for value in values), max(value.high for value in values))
    ordered = sorted(value.value for value in values)
    quartiles = Quartiles(*(quantile(ordered, [], share).value for share in (0.25, 0.5, 0.75)))
    return Accuracy(*counts, quartiles.median, *ends, quartiles)


@dataclass(frozen=True)
class Cost:
    """What training costs on one platform, without measuring."""

    platform: str
    """Its label."""
    ms_per_epoch: float
    """One seed's share."""
    runs: int
    """How many of the seeds were timed there."""


def cost_of(seeds: Sequence[RunSummary]) -> Cost | None:
    """The cost on the platform where most of the seeds were trained."""
    timed = [(seed.platform.label, seed.platform.ms_per_epoch) for seed in seeds if seed.platform is not None]
    known = [(label, ms) for label, ms in timed if ms is not None]
    if not known:
        return None
    platform, runs = Counter(label for label, _ in known).most_common(1)[0]
    return Cost(platform, median([ms for label, ms in known if label == platform]), runs)


def seconds_to_threshold(epochs: Estimate, cost: Cost | None) -> Count | None:
    """Seconds through the epoch that passed, at the median cost of an epoch."""
    median = epochs.settled_median
    if median is None or cost is None:
        return None
    trained = median.value + 1 if median.is_exact else median.value  # epochs count from 0; a bound is a number of epochs
    return median._replace(value=trained * cost.ms_per_epoch / 1000)


@dataclass(frozen=True)
class Spent:
    """The time of a table's runs, training and measuring."""

    table: str
    runs: int
    untimed: int
    """Runs without stored times."""
    seconds: Mapping[str, float]
    """By device, while at least one of the runs was in training."""
    hardware: tuple[str, ...]


def spent_on(table: str, runs: Sequence[RunSummary]) -> Spent:
    """The time of these runs, under the name of a table."""
    hardware = Counter(run.platform.hardware for run in runs if run.platform is not None)
    untimed = sum(not run.sessions for run in runs)
    seconds = busy_seconds(session for run in runs for session in run.sessions)
    return Spent(table, len(runs), untimed, seconds, tuple(name for name, _ in hardware.most_common()))
