"""Points: their settings and runs, the results of their seeds, their order, and what a file knows of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from small import CIFAR, MNIST, TRANSFORMER

from egalitarian.lab.config import Method, Optim, Run, SpecError, load
from egalitarian.lab.runs import Outcome, Reads, try_step
from egalitarian.lab.tuning.plan import load_plan
from egalitarian.lab.tuning.points import Grid, Known, Point, Position, SeedResult, grid_value
from egalitarian.lab.tuning.trials import _spelled as spelled

PLAN = load_plan()


def seed(crossed: int | None, accuracy: float = 0.5, train: float = 0.5, number: int = 0) -> SeedResult:
    return SeedResult(number, f"id-{number}", 10, crossed, accuracy, train, diverged=False)


def point(*crossed: int | None, **more: Any) -> Point:
    return Point(
        Position(0, 0), 1.0, 1.0, 100, tuple(seed(one, number=number, **more) for number, one in enumerate(crossed))
    )


SMALLER = {
    "addition": ("task.modulus=7", "model.width=8", "training.batch=9"),
    "parity": ("task.bits=10", "task.train_size=40", "task.test_size=30", "model.width=12", "training.batch=8"),
    "mnist": (*MNIST[:2], "training.batch=8"),
    "transformer": TRANSFORMER,
    "cifar": CIFAR,
}
"""By family, with as many steps in a pass as its readings allow."""


def test_values_of_the_grid() -> None:
    assert [grid_value(0.0416239, 4.0, halves) for halves in (-1, 0, 1, 2)] == [0.0208, 0.0416, 0.0832, 0.166]
    assert grid_value(1e-3, 3.0, None) == 0


@pytest.mark.parametrize("name", PLAN)
def test_a_position_changes_two_settings_and_those_that_keep_their_ratio(name: str) -> None:
    each = PLAN[name]
    for method, tuned in each.methods.items():
        grid, position = Grid(each, method), Position(3, 1)
        lr, decay = grid.settings(position)
        assert lr == grid_value(tuned.lr.first, each.lr_factor, 3)
        assert decay == grid_value(tuned.decay.first, tuned.decay.factor or each.decay_factor, 1)
        searched, fresh = (grid.experiment(position, validation=validation) for validation in (True, False))
        here = fresh.method(method)
        assert (here.hidden or here.optim).lr == lr
        if method != "lion-clip":
            assert (here.hidden or here.optim).weight_decay == decay
        if here.hidden is not None:
            assert here.optim.lr == pytest.approx(lr / 50, rel=5e-3)
            assert here.optim.weight_decay == pytest.approx(decay * 50, rel=5e-3)
        assert (searched.training.validation, fresh.training.validation) == (each.validation, 0)
        assert (searched.training.readings, fresh.training.readings) == (each.readings, each.fresh_readings)
        assert searched.method(method).epochs == each.budget * each.readings
        assert here.epochs == each.budget * each.fresh_readings


def test_a_method_is_the_same_in_every_family_but_for_its_matrices() -> None:
    """Nothing of an experiment's own `[optim]` is left in it, but betas of optimizers that have none."""

    def own(optim: Optim | None) -> Optim | None:
        return optim if optim is None or optim.optimizer not in ("sgd", "muon") else optim.replace(betas=(0.9, 0.999))

    def plain(method: Method) -> Method:
        optims = {"optim": own(method.optim), "hidden": own(method.hidden)}
        return method.replace(targets=("all",), epochs=1, **optims)

    for method in PLAN["addition"].methods:
        found = [
            plain(grid.experiment(Position(0, 0), validation=True).method(method))
            for grid in (Grid(each.replace(lr_factor=4.0, decay_factor=10.0), method) for each in PLAN.values())
        ]
        assert found == found[:1] * len(found)


def test_no_decay_is_none_for_every_setting_that_follows_it() -> None:
    for method in PLAN["addition"].methods:
        here = Grid(PLAN["addition"], method).experiment(Position(0, None), validation=True).method(method)
        assert here.optim.weight_decay == (here.hidden or here.optim).weight_decay == 0
        assert here.clip is None


def test_a_third_setting_changes_ratios_and_multiplies_the_best() -> None:
    family = PLAN["addition"]
    thirds = {third.title: number for number, third in enumerate(family.methods["egd-hidden"].third, 1)}
    grid = Grid(family, "egd-hidden")

    def at(title: str) -> tuple[float, float, float, float]:
        number = thirds[title] if title else 0
        method = grid.experiment(Position(6, 2, number), validation=True).method("egd-hidden")
        assert method.hidden is not None
        return method.hidden.lr, method.hidden.weight_decay, method.optim.lr, method.optim.weight_decay

    lr, decay, other_lr, other_decay = at("")
    assert at("AdamW's lr x 4") == (lr, decay, pytest.approx(4 * other_lr), pytest.approx(other_decay / 4))
    assert at("AdamW's decay x 4") == (lr, decay, other_lr, pytest.approx(4 * other_decay))
    momentum = Grid(family, "sgd-momentum")
    (half,) = [n for n, third in enumerate(family.methods["sgd-momentum"].third, 1) if third.title == "momentum 0.5"]
    assert momentum.settings(Position(6, 2, half))[0] == pytest.approx(5 * momentum.settings(Position(6, 2))[0])
    assert momentum.experiment(Position(6, 2, half), validation=True).method("sgd-momentum").optim.momentum == 0.5


def test_a_key_of_no_setting_is_an_error() -> None:
    each = PLAN["addition"]
    tuned = each.methods["sgd"]
    for wrong in (
        tuned.replace(lr=tuned.lr.replace(key="optim.rl")),
        tuned.replace(lr=tuned.lr.replace(scales={"optim.rl": 0.5})),
    ):
        with pytest.raises(SpecError, match="rl must be a known setting"):
            Grid(each.replace(methods={**each.methods, "sgd": wrong}), "sgd").experiment(Position(0, 0), validation=True)


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("name", PLAN)
def test_every_method_and_every_setting_of_its_third_knob_can_be_trained(name: str) -> None:
    for method, tuned in PLAN[name].methods.items():
        grid = Grid(PLAN[name].replace(readings=1), method, SMALLER[name])
        for third in range(len(tuned.third) + 1):
            try_step(grid.experiment(Position(0, 0, third), validation=True), method, 0)


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
    passed, failed = point(3, 4), Point(Position(1, 0), 1.0, 1.0, 100, (seed(None, number=7),))
    known = Known({"points": [passed.to_json(), failed.to_json()], "fresh": {"e": [seed(5, number=9).to_json()]}})
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
    shared = [f"training.validation={family.validation}", f"training.readings={family.readings}"]
    for method, tuned in family.methods.items():
        grid = Grid(family, method)
        for position in (Position(3, 1, len(tuned.third)), Position(2, None)):
            changes = [f"{key}={spelled(value)}" for key, value in grid.values(position).items()]
            loaded = load(family.experiment, [*shared, *changes], added=family.added)
            assert [run.id for run in grid.tuning_runs(position, "cuda")] == [
                Run(loaded, method, seed, "cuda").id for seed in family.tuning_seeds
            ]
