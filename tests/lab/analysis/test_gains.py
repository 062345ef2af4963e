"""Average gains over tasks, with numbers that are known beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_records import write_gains, write_run

from egalitarian.lab.analysis import average_gain, gather
from egalitarian.lab.config import Gain, catalog, load_contents
from egalitarian.lab.runs import Store


def test_the_average_gain_is_the_mean_over_tasks_of_ratios_of_medians(tmp_path: Path) -> None:
    gathered = gather(write_gains(Store(tmp_path)))
    plans = {plan.name: plan for table in load_contents().tables for plan in table.gains}
    tasks = ("addition-79", "addition-97", "addition-127", "parity-4")
    egd = average_gain(gathered, plans["egd"], tasks)
    assert str(egd.epochs) == "10"
    assert egd.counted == {"addition-79": "egd", "addition-97": "egd"}
    assert egd.left_out == {"addition-127": "not run", "parity-4": "not run"}
    assert egd.n == 3
    assert egd.spread is not None
    low, high = egd.spread
    assert 5 <= low < 10 < high <= 30
    ranks = average_gain(gathered, plans["egd-rsvd-best-rank"], tasks)
    assert (str(ranks.epochs), ranks.counted) == ("8", {"addition-97": "egd-rsvd-128"})
    assert ranks.seconds is not None
    assert ranks.seconds.value == pytest.approx(201 / 41 / 2, rel=0.05)  # rank 64 needs more epochs and less time
    column = average_gain(gathered, plans["row-norm"], tasks)
    assert column.epochs is None
    assert column.left_out["parity-4"] == "by definition"
    assert column.left_out["addition-97"] == "unfinished"


def test_a_method_that_fails_half_of_the_time_is_left_out_of_the_average(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([10, None, None]):
        write_run(store, "addition-97", "sgd", seed, 100)
        write_run(store, "addition-97", "egd", seed, crossed)
    gain = average_gain(gather(store), Gain(name="x", title="x", methods=("egd",)), ["addition-97"])
    assert gain.epochs is None
    assert gain.left_out == {"addition-97": "half of the seeds or more do not pass"}
    assert (gain.spread, gain.quartiles) == (None, None), "a spread is over the tasks of the average"


def test_the_papers_average_and_ours_are_over_the_same_tasks(tmp_path: Path) -> None:
    """EGD passes on addition-97 alone: there the paper has 5392 / 116. Its parity-2, at 7873 / 109, does not count."""
    store = Store(tmp_path)
    for seed in range(4):
        for task, crossed in (("addition-97", 10 + seed % 2), ("parity-2", None)):
            write_run(store, task, "sgd", seed, 100)
            write_run(store, task, "egd", seed, crossed, epochs=20 if crossed is None else None, diverged=crossed is None)
    plan = Gain(name="x", title="x", methods=("egd",), epochs=59.4)
    one = average_gain(gather(store), plan, ["addition-97", "parity-2"])
    assert one.paper == 5392 / 116
    assert one.spread == pytest.approx((100 / 11, 10.0))
    assert one.quartiles == pytest.approx((100 / 11, 100 / 11, 10.0), rel=0.1)
    assert (one.n, list(one.counted)) == (4, ["addition-97"])
    assert average_gain(gather(store), plan, ["parity-2"]).paper is None


def test_a_draw_with_a_seed_that_fails_is_no_average_over_fewer_tasks(tmp_path: Path) -> None:
    """Gains of 10 and 50. Where EGD fails on the second task, an average of 10 alone would widen the spread."""
    store = Store(tmp_path)
    for seed in range(4):
        for task, crossed in (("addition-79", 10), ("addition-97", 2 if seed else None)):
            write_run(store, task, "sgd", seed, 100)
            write_run(store, task, "egd", seed, crossed, epochs=20 if crossed is None else None, diverged=crossed is None)
    gain = average_gain(gather(store), Gain(name="x", title="x", methods=("egd",)), ["addition-79", "addition-97"])
    assert (str(gain.epochs), gain.spread) == ("30", (30.0, 30.0))


def test_a_baseline_that_fails_half_of_the_time_has_no_gains(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([100, None, None]):
        write_run(store, "addition-97", "sgd", seed, crossed)
        write_run(store, "addition-97", "egd", seed, 10)
    gain = average_gain(gather(store), Gain(name="x", title="x", methods=("egd",)), ["addition-97"])
    assert (gain.epochs, gain.seconds) == (None, None)
    assert gain.left_out == {"addition-97": "half of the seeds or more do not pass"}


def test_a_method_that_passes_at_once_has_no_gain_and_a_reason_is_given(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(3):
        write_run(store, "addition-97", "sgd", seed, 100)
        write_run(store, "addition-97", "egd", seed, 0)
    gain = average_gain(gather(store), Gain(name="x", title="x", methods=("egd",)), ["addition-97"])
    assert gain.epochs is None
    assert gain.left_out == {"addition-97": "passes at epoch 0"}


def test_the_papers_own_averages_follow_from_its_tables() -> None:
    """That ours are made as the paper's are: its claims, put through the same definition, give its Table 5."""
    plan = next(table for table in load_contents().tables if table.kind == "gains")
    for gain in plan.gains:
        if gain.epochs is None or gain.seconds is None:
            continue
        ratios: dict[str, list[float]] = {"epochs": [], "seconds": []}
        for name in plan.experiments:
            claims = catalog.load(name).claims
            if name in gain.leaves_out:
                continue
            for measure, found in ratios.items():
                over = getattr(claims[gain.baseline], measure)
                under = [getattr(claims[method], measure) for method in gain.methods if method in claims]
                found.append(over / min(value for value in under if isinstance(value, int | float)))
        assert sum(ratios["epochs"]) / len(ratios["epochs"]) == pytest.approx(gain.epochs, abs=0.1)
        assert sum(ratios["seconds"]) / len(ratios["seconds"]) == pytest.approx(gain.seconds, abs=0.11)
