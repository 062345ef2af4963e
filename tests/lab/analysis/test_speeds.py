"""Which method passes first on each task, and the gain by EGD."""

from __future__ import annotations

import pytest
from report_records import write_gains, write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.analysis.speeds import TaskSpeed, task_speeds, wins
from egalitarian.lab.runs import Store


@pytest.fixture(scope="module")
def speeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TaskSpeed]:
    store = write_gains(Store(tmp_path_factory.mktemp("runs")))
    for seed in range(3):
        write_run(store, "parity-2", "sgd", seed, epochs=30, diverged=True)
        write_run(store, "parity-2", "egd", seed, 30)
    gathered = gather(store)
    listed = task_speeds(gathered, [each.name for each in gathered.experiments])
    return {speed.experiment.name: speed for speed in listed}


def test_tasks_without_runs_or_with_none_that_is_settled_are_left_out(speeds: dict[str, TaskSpeed]) -> None:
    assert list(speeds) == ["addition-79", "addition-97", "addition-127", "parity-2"]
    assert "row-norm" not in speeds["addition-97"].medians, "its one seed is unfinished"


def test_the_gain_is_the_baselines_median_over_that_of_the_fastest_form_of_egd(speeds: dict[str, TaskSpeed]) -> None:
    assert (speeds["addition-79"].baseline, speeds["addition-79"].equalised) == ("sgd", "egd")
    assert speeds["addition-79"].gain == (200 / 20, "")
    assert speeds["addition-97"].fastest == ("egd-after",)
    assert speeds["addition-97"].gain == (200 / 4, "")
    assert speeds["addition-127"].gain is None, "no baseline was run"
    assert speeds["parity-2"].gain is None, "a bound would depend on the budget alone"


def test_wins_count_tasks_with_two_methods_or_more(speeds: dict[str, TaskSpeed]) -> None:
    assert wins(list(speeds.values())) == {"EGD": 2, "EGD, decay after (lr 3)": 1}
