"""The numbers of a row: steps of an epoch, and a method's seeds right after training."""

from __future__ import annotations

import math

import pytest
import torch

from egalitarian.lab.analysis import Count, summarize_method
from egalitarian.lab.config import Record, catalog
from egalitarian.lab.runs import Outcome
from egalitarian.lab.training import Ensemble


@pytest.mark.parametrize(
    ("batch", "drop_last", "passes", "steps"),
    [(32, True, 1, 62), (32, False, 1, 63), (2000, False, 1, 1), (1000, True, 5, 10), (32, False, 3, 189)],
)
def test_an_epochs_steps_are_those_that_are_trained(batch: int, drop_last: bool, passes: int, steps: int) -> None:
    changes = [f"training.batch={batch}", f"training.drop_last={str(drop_last).lower()}", f"training.passes={passes}"]
    experiment = catalog.load("parity-2", changes)
    assert experiment.steps_per_epoch == steps
    ensemble = Ensemble(experiment, [0], torch.device("cpu"))
    assert len(ensemble.choices(0)) == ensemble.steps == steps


def test_the_papers_experiments_count_steps_as_their_sources_do() -> None:
    steps = {name: catalog.load(name).steps_per_epoch for name in catalog.names()}
    assert all(steps.values())
    assert (steps["mnist"], steps["transformer"], steps["cifar-shuffle-1"], steps["addition-97"]) == (100, 10, 40, 9)


def timed(*seconds: float, seeds: int = 1) -> list[Record]:
    """The timings of a run, with the seconds of each epoch for a batch of seeds."""
    return [{"epoch": epoch, "training": own, "measuring": 9.0, "seeds": seeds} for epoch, own in enumerate(seconds)]


def test_a_methods_seconds_are_one_seeds_training_through_the_epoch_that_passes() -> None:
    outcomes = [Outcome(0.95, epochs=4, crossed=1), Outcome(0.95, epochs=4, crossed=2)]
    found = summarize_method(outcomes, [timed(2, 4, 6, 8, seeds=2), timed(2, 4, 6, 8, seeds=2)], budget=100)
    assert (str(found.epochs), found.seconds, found.passed) == ("1.5 (1–2)", Count(4.5), True)
    assert found.ms_per_epoch == 2000, "of the epochs that count: 1, 2, and 1, 2, 3 seconds"


def test_an_epoch_that_was_trained_twice_counts_once_with_its_later_time() -> None:
    again = [*timed(5, 5, 5), *timed(1, 1, 1)[1:]]
    assert summarize_method([Outcome(0.95, epochs=3, crossed=2)], [again], budget=9).seconds == Count(7)


@pytest.mark.parametrize(
    ("seeds", "seconds", "passed"),
    [("pppdd", Count(7), True), ("ppddd", Count(math.inf, ">"), False), ("ppuud", Count(1, ">"), False)],
)
def test_a_seed_that_diverged_needs_more_than_any_time(seeds: str, seconds: Count, passed: bool) -> None:
    """Its few seconds are no bound: p passed after 5, 6, 7 seconds, d diverged after half a second, u did not pass in 1."""
    outcomes, timings = [], []
    for index, seed in enumerate(seeds):
        outcomes.append(Outcome(0.95, epochs=1, crossed=0 if seed == "p" else None, diverged=seed == "d"))
        timings.append(timed({"p": 5 + index, "d": 0.5, "u": 1.0}[seed]))
    found = summarize_method(outcomes, timings, budget=100)
    assert (found.seconds, found.passed) == (seconds, passed)


def test_a_seed_that_diverged_has_its_whole_budget_as_a_bound() -> None:
    lost = summarize_method([Outcome(0.95, epochs=3, diverged=True)], [[]], budget=100)
    assert str(lost.epochs) == "> 100"
    assert math.isnan(lost.ms_per_epoch)
    assert str(summarize_method([Outcome(0.95, epochs=3)], [[]], budget=100).epochs) == "> 3"
