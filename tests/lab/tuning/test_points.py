"""Points: their settings and runs, the results of their seeds, their order, and what a file knows of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from small import CIFAR, MNIST, TRANSFORMER

from egalitarian.lab.config import Experiment, Run, SpecError, load
from egalitarian.lab.runs import Outcome, Reads, try_step
from egalitarian.lab.tuning.plan import load_plan
from egalitarian.lab.tuning.points import Grid, Known, Point, Position, SeedResult, grid_value

PLAN = load_plan()


def seed(crossed: int | None, accuracy: float = 0.5, train: float = 0.5, number: int = 0) -> SeedResult:
    return SeedResult(number, f"id-{number}", 10, crossed, accuracy, train, diverged=False)


def point(*crossed: int | None, **more: Any) -> Point:
    return Point((0, 0), 1.0, 1.0, 100, tuple(seed(one, number=number, **more) for number, one in enumerate(crossed)))


def at(grid: Grid, position: Position, *, validation: bool) -> Experiment:
    return grid.experiment(*grid.settings(position), validation=validation)


def test_values_of_the_grid() -> None:
    assert [grid_value(0.0416239, 2.0, power) for power in (-1, 0, 1)] == [0.0208, 0.0416239, 0.0832]
    assert grid_value(1e-3, 3.0, None) == 0


@pytest.mark.parametrize("name", PLAN)
def test_a_position_changes_two_settings_and_those_that_keep_their_ratio(name: str) -> None:
    each = PLAN[name]
    for method, tuned in each.methods.items():
        grid = Grid(each, method)
        lr, decay = grid.settings((1, -1))
        assert lr == grid_value(tuned.lr.centre, each.lr_factor, 1)
        assert decay == grid_value(tuned.decay.centre, each.decay_factor, -1)
        here, centre = (at(grid, position, validation=False).method(method) for position in ((1, -1), (0, 0)))
        part, _, key = tuned.lr.key.partition(".")
        assert getattr(getattr(here, part), key) == lr
        assert (here.hidden or here.optim).lr == lr  # the matrices move with it
        assert (here.hidden or here.optim).weight_decay == decay
        assert here.optim.lr / centre.optim.lr == pytest.approx(each.lr_factor)
        assert at(grid, (1, -1), validation=True).training.validation == each.validation
        assert at(grid, (1, -1), validation=False).training.validation == 0


def test_a_key_of_no_setting_is_an_error() -> None:
    each = PLAN["addition"]
    tuned = each.methods["egd"]
    wrong = tuned.replace(lr=tuned.lr.replace(key="optim.rl"))
    with pytest.raises(SpecError, match="rl must be a known setting"):
        at(Grid(each.replace(methods={**each.methods, "egd": wrong}), "egd"), (0, 0), validation=True)
    wrong = tuned.replace(lr=tuned.lr.replace(scales=("hidden.lr",)))
    with pytest.raises(SpecError, match=r"scales must name numbers that the method has, got 'hidden\.lr'"):
        at(Grid(each.replace(methods={**each.methods, "egd": wrong}), "egd"), (0, 0), validation=True)


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize(("name", "smaller"), [("mnist", MNIST), ("transformer", TRANSFORMER), ("cifar", CIFAR)])
def test_methods_that_are_added_can_be_trained(name: str, smaller: tuple[str, ...]) -> None:
    for method in PLAN[name].added:
        rank = ["methods.egd-rsvd-32.transform.0.rank=3"] if method == "egd-rsvd-32" else []
        try_step(at(Grid(PLAN[name], method, (*smaller, *rank)), (0, 0), validation=True), method, 0)


def test_failures_count_first_then_the_median_and_a_failure_is_infinite() -> None:
    assert point(5, 9, 7).median == 7
    assert point(5, None, 7).median == 7
    assert math.isinf(point(5, None, None).median)
    ranked = [point(5, 6, 7), point(7, 7, 7), point(5, 6, None), point(None, None, 1), point(None, None, None)]
    ranks = [one.rank("epochs") for one in ranked]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
    better, worse = point(None, accuracy=0.9), point(None, accuracy=0.8)
    assert better.rank("epochs") < worse.rank("epochs")
    assert point(5, 6, 6).rank("epochs") < point(6, 6, 6).rank("epochs")
    assert point(None, train=0.9).rank("train-accuracy") < point(1, train=0.8).rank("train-accuracy")


def records(test: list[float], validation: list[float], loss: float | None = 1.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for epoch, (one, other) in enumerate(zip(test, validation, strict=True)):
        accuracies = {"test_accuracy": one, "validation_accuracy": other, "train_accuracy": 0.5}
        found += [{"epoch": epoch, "train_loss": loss, **accuracies}, {"epoch": epoch, "snapshot": {}}]
    return found


def result(lines: list[dict[str, Any]], reads: Reads, budget: int) -> SeedResult:
    return SeedResult.of(3, "id", Outcome.of(lines, 0.95, reads=reads, budget=budget), budget)


def test_validation_decides_and_not_test() -> None:
    both = records([0.1, 0.99, 0.99, 0.99], [0.1, 0.2, 0.99, 0.4])
    read = result(both, "validation_accuracy", 10)
    assert (read.crossed, read.accuracy, read.epochs) == (2, 0.4, 4)
    assert result(both, "test_accuracy", 10).crossed == 1


def test_what_is_beyond_the_budget_does_not_count() -> None:
    both = records([0.1, 0.1, 0.99], [0.1, 0.2, 0.99])
    read = result(both, "validation_accuracy", 2)
    assert (read.crossed, read.accuracy, read.epochs) == (None, 0.2, 2)


def test_epochs_that_a_diverged_seed_lacks_count_as_zero() -> None:
    read = result(records([0.1] * 2, [0.1] * 2, loss=None), "test_accuracy", 10)
    assert read.diverged
    assert read.mean_train_accuracy == pytest.approx(2 * 0.5 / 10)
    assert result(records([0.1] * 4, [0.1] * 4), "test_accuracy", 4).mean_train_accuracy == 0.5


def test_a_files_points_are_known_for_their_runs_and_their_budget() -> None:
    passed, failed = point(3, 4), Point((1, 0), 1.0, 1.0, 100, (seed(None, number=7),))
    known = Known({"points": [passed.to_json(), failed.to_json()], "fresh": [seed(5, number=9).to_json()]})
    assert known.point(["id-0", "id-1"], 50, 50) == (50, passed.seeds)  # both passed before
    assert known.point(["id-0", "id-1"], 4, 50) is None
    assert known.point(["id-0"], 100, 100) is None
    assert known.point(["id-7"], 100, 100) == (100, failed.seeds)
    assert known.point(["id-7"], 50, 100) == (100, failed.seeds)  # it was tried for longer
    assert known.point(["id-7"], 50, 99) is None
    assert known.point(["id-7"], 150, 200) is None
    assert known.fresh(["id-9"]) == (seed(5, number=9),)
    assert known.fresh(["id-8"]) is None
    assert Known().fresh([]) is None


@pytest.mark.parametrize("name", PLAN)
def test_numbers_and_their_text_are_the_same_runs(name: str) -> None:
    """The values of a point, and the same as `--set` takes them: `best.changes` of a results file trains its runs."""
    family = PLAN[name]
    for method in family.methods:
        grid = Grid(family, method)
        for position in ((1, -1), (-2, None)):
            lr, decay = grid.settings(position)
            changes = [f"{key}={value!r}" for key, value in grid.values(lr, decay).items()]
            spelled = load(family.experiment, [f"training.validation={family.validation}", *changes], added=family.added)
            assert [run.id for run in grid.tuning_runs(lr, decay, "cuda")] == [
                Run(spelled, method, seed, "cuda").id for seed in family.tuning_seeds
            ]
