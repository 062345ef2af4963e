"""An outcome is a fold over records: of = repeated after, snapshots and epochs beyond a budget change nothing."""

from __future__ import annotations

import json
import math
import statistics
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import law

from egalitarian.lab.runs import Outcome, Stop, training_seconds

numbers = st.one_of(st.none(), st.just(math.nan), st.just(math.inf), st.floats(0, 1))
READS = ("test_accuracy", "validation_accuracy")


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Records of consecutive epochs, some with a snapshot after them."""
    found = []
    for epoch in range(draw(st.integers(0, 12))):
        keys = ("train_loss", "train_accuracy", *READS)
        found.append({"epoch": epoch, **{key: draw(numbers) for key in keys}})
        if draw(st.booleans()):
            found.append({"epoch": epoch, "snapshot": {"singular_values": [1.0]}})
    return found


def record(epoch: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "train_loss": 0.5, "train_accuracy": 0.9, "test_accuracy": accuracy, **more}


def finite(values: list[Any]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


@law
@given(runs(), st.floats(0, 1), st.sampled_from(READS))
def test_of_is_the_fold_of_after(records: list[dict[str, Any]], threshold: float, reads: Any) -> None:
    fold = reduce(Outcome.after, records, Outcome(threshold, reads))
    assert Outcome.of(records, threshold, reads=reads) == fold


@law
@given(runs(), st.floats(0, 1), st.sampled_from(READS))
def test_it_is_what_one_reads_from_the_records(records: list[dict[str, Any]], threshold: float, reads: Any) -> None:
    found = Outcome.of(records, threshold, reads=reads)
    epochs = [each for each in records if "snapshot" not in each]
    passed = [each["epoch"] for each in epochs if finite([each[reads]]) and each[reads] > threshold]
    assert found.crossed == (passed[0] if passed else None)
    assert found.epochs == len(epochs)
    assert found.epochs_until_passed == (passed[0] + 1 if passed else len(epochs))
    assert found.best_test_accuracy == max(finite([each["test_accuracy"] for each in epochs]), default=None)
    learnt = finite([each["train_accuracy"] for each in epochs])
    assert found.mean_train_accuracy == (pytest.approx(statistics.fmean(learnt)) if learnt else None)
    if epochs:
        assert found.diverged is not bool(finite([epochs[-1]["train_loss"]]))
        for key, value in (("train_accuracy", found.train_accuracy), ("test_accuracy", found.test_accuracy)):
            assert [value] == (finite([epochs[-1][key]]) or [None])
        assert [found.accuracy] == (finite([epochs[-1][reads]]) or [None])


@law
@given(runs(), st.floats(0, 1))
def test_memory_and_disk_agree(records: list[dict[str, Any]], threshold: float) -> None:
    """A stored record has null where a number is not finite."""
    stored = [
        {key: value if isinstance(value, dict) or finite([value]) else None for key, value in each.items()}
        for each in records
    ]
    assert Outcome.of(json.loads(json.dumps(stored)), threshold) == Outcome.of(records, threshold)


@law
@given(runs(), st.floats(0, 1), st.integers(0, 15))
def test_a_budget_leaves_out_later_epochs(records: list[dict[str, Any]], threshold: float, budget: int) -> None:
    within = [each for each in records if each["epoch"] < budget]
    assert Outcome.of(records, threshold, budget=budget) == Outcome.of(within, threshold)


@law
@given(runs(), st.floats(0, 1))
def test_snapshots_change_nothing(records: list[dict[str, Any]], threshold: float) -> None:
    without = [each for each in records if "snapshot" not in each]
    assert Outcome.of(records, threshold) == Outcome.of(without, threshold)


def test_a_threshold_must_be_exceeded() -> None:
    assert Outcome.of([record(0, 0.95)], 0.95).crossed is None
    assert Outcome.of([record(0, 0.95), record(1, math.nextafter(0.95, 1))], 0.95).crossed == 1
    assert Outcome.of([record(0, 1.0)], 1.0).crossed is None


def test_the_first_crossing_counts() -> None:
    found = Outcome.of([record(0, 0.1), record(1, 0.99), record(2, 0.2), record(3, 0.99)], 0.95)
    assert (found.crossed, found.accuracy, found.best_test_accuracy) == (1, 0.99, 0.99)


def test_another_accuracy_may_decide() -> None:
    records = [record(0, 0.99, validation_accuracy=0.5), record(1, 0.3, validation_accuracy=0.99)]
    found = Outcome.of(records, 0.95, reads="validation_accuracy")
    assert (found.crossed, found.accuracy, found.test_accuracy) == (1, 0.99, 0.3)


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_has_diverged(loss: float | None) -> None:
    found = Outcome.of([record(0, 0.5), {**record(1, 0.5), "train_loss": loss}], 0.95)
    assert found.diverged
    assert Stop(0.95, 10, 1).ends(found)


def test_a_record_of_test_accuracy_alone_is_enough() -> None:
    found = Outcome(0.5).after({"epoch": 0, "test_accuracy": 0.6})
    assert (found.crossed, found.diverged, found.train_accuracy, found.mean_train_accuracy) == (0, False, None, None)


def test_nothing_trained_has_no_outcome_yet() -> None:
    found = Outcome.of([], 0.95)
    assert (found.epochs, found.epochs_until_passed) == (0, 0)
    assert (found.crossed, found.diverged, found.accuracy) == (None, False, None)
    assert not Stop(0.95, 10, 1).ends(found)


def test_seconds_are_a_seeds_share_through_the_crossing() -> None:
    timings = [{"epoch": epoch, "training": 8.0 + epoch, "seeds": 4} for epoch in (0, 1, 2, 3)]
    timings.append({"epoch": 1, "training": 2.0, "seeds": 2})  # trained a second time, in a smaller batch
    passed = Outcome.of([record(0, 0.1), record(1, 0.1), record(2, 0.99), record(3, 0.99)], 0.95)
    assert training_seconds(timings, passed) == [2.0, 1.0, 2.5]
    failed = Outcome.of([record(epoch, 0.1) for epoch in range(4)], 0.95)
    assert training_seconds(timings, failed) == [2.0, 1.0, 2.5, 2.75]


@pytest.mark.parametrize(
    ("accuracies", "stop", "ends"),
    [
        ([0.1] * 4, Stop(0.95, 5, 1), False),
        ([0.1] * 5, Stop(0.95, 5, 1), True),
        ([0.1, 0.99], Stop(0.95, 9, 1), False),
        ([0.1, 0.99, 0.1], Stop(0.95, 9, 1), True),
        ([0.99], Stop(0.95, 9, 0), True),
    ],
)
def test_a_seed_ends_at_its_budget_or_past_the_threshold(accuracies: list[float], stop: Stop, ends: bool) -> None:
    outcome = Outcome.of([record(epoch, accuracy) for epoch, accuracy in enumerate(accuracies)], stop.threshold)
    assert stop.ends(outcome) == ends
