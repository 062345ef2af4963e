"""The search alone, without training: as many points for every method, a planted optimum is found, edges are left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import law

from egalitarian.lab.tuning.plan import Family, load_plan
from egalitarian.lab.tuning.points import Grid, Point, Position, SeedResult
from egalitarian.lab.tuning.search import COARSE, Search, coarse

PLAN = load_plan()
Trial = Callable[[Position, int], Point]


def seed(crossed: int | None, number: int = 0, accuracy: float = 0.5, diverged: bool = False) -> SeedResult:
    return SeedResult(number, f"id-{number}", 10, crossed, accuracy, 0.5, diverged)


def family(**changes: Any) -> Family:
    """One reading in a pass, so that epochs are passes."""
    return PLAN["addition"].replace(**{"readings": 1, "budget": 10_000, **changes})


def planted(lr: float, decay: float | None, third: int = 0) -> Trial:
    """Epochs grow with the distance from a position. No decay is beyond all decays, even the smallest."""

    def trial(position: Position, budget: int) -> Point:
        row = -4 if position.decay is None else position.decay
        away = (position.lr - lr) ** 2 + (row - (-4 if decay is None else decay)) ** 2
        away += 4 * ((position.decay is None) != (decay is None))
        epochs = math.floor(20 + 4 * away) - (5 if third and position.third == third else 0)
        return Point(position, 1.0, 1.0, budget, (seed(epochs if epochs < budget else None),))

    return trial


def run(search: Search, trial: Trial) -> list[tuple[str, Position, int]]:
    """Searches to the end; every proposal with its stage."""
    tried = []
    for position, budget in search:
        tried.append((search.stage, position, budget))
        search.add(trial(position, budget))
    return tried


@pytest.mark.parametrize("name", PLAN)
def test_the_coarse_grid_spans_four_decades_of_both_and_has_points_without_decay(name: str) -> None:
    each = PLAN[name]
    positions = coarse(each)
    assert len(positions) == len(set(positions)) == each.lrs * (each.decays + 1) // 2
    for method in each.methods:
        values = [Grid(each, method).settings(position) for position in positions]
        lrs, decays = {lr for lr, _ in values}, {decay for _, decay in values if decay}
        assert max(lrs) / min(lrs) >= 1e4
        assert max(decays) / min(decays) >= 1e4 * (1 - 1e-9) or method == "lion-clip"
        assert 0.0 in {decay for _, decay in values}
    assert set(Counter(position.lr for position in positions).values()) == {(each.decays + 1) // 2}
    away = [max(abs(p.lr - each.lrs + 1), abs((-4 if p.decay is None else p.decay) - each.decays + 1)) for p in positions]
    assert away == sorted(away), "the middle first"


@law
@given(st.integers(2, 6), st.sampled_from([1, 3, 5, 7]))
def test_a_position_off_the_coarse_grid_has_tried_ones_on_all_four_sides(lrs: int, decays: int) -> None:
    """Rows alternate: what one learning rate leaves out, its neighbours have."""
    positions = set(coarse(family(lrs=lrs, decays=decays)))
    for lr in range(1, lrs - 1):
        for decay in range(decays):
            here = Position(COARSE * lr, COARSE * decay)
            beside = {Position(COARSE * (lr + step), COARSE * decay) for step in (-1, 1)}
            assert here in positions or beside <= positions


@pytest.mark.parametrize("name", PLAN)
@pytest.mark.parametrize("best", [(7, 4), (6, 3), (7, None)])
def test_every_method_has_as_many_points_and_48_or_24_of_them(name: str, best: tuple[int, int | None]) -> None:
    each = PLAN[name]
    inside = best if each.lrs == 8 else (5, None if best[1] is None else 2)
    for method in each.methods:
        search = Search(each.replace(score="epochs", budget=10_000), method)
        run(search, planted(*inside))
        assert (len(search.points), search.beyond) == (24 if name == "cifar" else 48, 0)
        assert search.inside


def test_a_method_without_a_third_knob_has_its_points_around_the_best() -> None:
    for method, stage in (("sgd", "around the best"), ("adamw", "third knob")):
        stages = Counter(stage for stage, *_ in run(Search(family(), method), planted(7, 4)))
        assert stages == {"coarse grid": 24, "basin 1": 8, "basin 2": 8, stage: 8}


@law
@given(st.integers(0, 14), st.one_of(st.none(), st.integers(0, 8)))
def test_a_planted_optimum_within_the_grid_is_found(lr: int, decay: int | None) -> None:
    search = Search(family(), "adamw")
    run(search, planted(lr, decay))
    assert search.best is not None
    assert half_factors(search.best.position, lr, decay) <= 1
    assert search.inside or search.best.position.lr in (0, 14)


def half_factors(position: Position, lr: int, decay: int | None) -> int:
    """How far a position is from another on either axis."""
    row, other = (-4 if each is None else each for each in (position.decay, decay))
    return max(abs(position.lr - lr), abs(row - other))


@pytest.mark.parametrize(("lr", "decay"), [(20, 4), (-5, 4), (7, 14), (7, -6), (18, 12), (20, None)])
def test_a_best_point_on_an_edge_gets_up_to_twelve_more(lr: int, decay: int | None) -> None:
    search = Search(family(), "adamw")
    tried = run(search, planted(lr, decay))
    assert 3 <= search.beyond <= 12
    assert len(search.points) == 48 + search.beyond
    assert len({position for _, position, _ in tried}) == len(search.points)
    assert search.best is not None
    assert half_factors(search.best.position, lr, decay) <= 1


def test_a_search_that_never_leaves_the_edge_stops_and_says_so() -> None:
    search = Search(family(budget=1_000_000), "adamw")
    run(search, planted(99, 99))
    assert search.beyond == 12
    assert not search.inside


def test_two_basins_are_refined_and_no_two_neighbours() -> None:
    def trial(position: Position, budget: int) -> Point:
        """Two valleys; the better one is narrow, and off the coarse grid."""
        row = -4 if position.decay is None else position.decay
        wide = 40 + 4 * ((position.lr - 2) ** 2 + (row - 2) ** 2)
        narrow = 10 + 40 * ((position.lr - 11) ** 2 + (row - 7) ** 2)
        return Point(position, 1.0, 1.0, budget, (seed(min(wide, narrow)),))

    search = Search(family(patience=1000.0), "adamw")
    tried = run(search, trial)
    assert search.best is not None
    assert search.best.position[:2] == (11, 7)
    first, second = ([p for stage, p, _ in tried if stage == f"basin {number}"] for number in (1, 2))
    assert all(half_factors(p, 2, 2) <= 4 for p in first)
    assert all(half_factors(p, 11, 7) <= 4 for p in second)


def test_points_that_diverged_do_not_draw_the_search() -> None:
    """Outputs that are NaN are right for the first class: on mod 97 that is more than a network that memorises has."""

    def trial(position: Position, budget: int) -> Point:
        diverges = position.lr > 6
        return Point(position, 1.0, 1.0, budget, (seed(None, accuracy=0.0103 if diverges else 0.0, diverged=diverges),))

    search = Search(family(), "adamw")
    tried = run(search, trial)
    assert search.best is not None
    assert search.best.position.lr <= 6
    assert all(position.lr <= 7 for stage, position, _ in tried if stage == "basin 1")


def test_the_third_knob_is_tried_at_the_best_point_and_may_win() -> None:
    search = Search(family(), "adamw")
    tried = run(search, planted(7, 4, third=5))
    knobs = [position for stage, position, _ in tried if stage == "third knob"]
    assert knobs == [Position(7, 4, number) for number in range(1, 9)]
    assert search.best is not None
    assert search.best.position == Position(7, 4, 5)
    assert search.inside


def test_no_point_gets_more_than_a_multiple_of_the_best_before_it() -> None:
    search = Search(family(patience=3.0), "adamw")
    best = math.inf
    for position, budget in search:
        assert budget == (10_000 if math.isinf(best) else min(10_000, 3 * (best + 1)))
        point = planted(7, 4)(position, budget)
        if search.add(point):
            best = min(best, point.median)
    none = Search(family(budget=7), "adamw")  # nothing passes, so no budget is shortened
    assert {budget for _, _, budget in run(none, planted(7, 4))} == {7}
    assert Search(family(readings=3, budget=7), "adamw").budget == 21
    assert Search(family(budget=7, score="train-accuracy"), "adamw").budget == 7


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cut_off_that_the_best_was_never_under_decides_nothing(order: tuple[int, int]) -> None:
    """Two points of which one is twice as fast on every seed, whichever is tried first."""
    kinds = ((20, 20, 20, 250), (10, 10, 10, 125))
    both = [kinds[index] for index in order]
    search = Search(family(budget=300, patience=5.0, lrs=2, decays=1, around=0, thirds=0, further=0), "sgd")
    for number, (position, budget) in enumerate(search):
        times = both[min(number, 1)]
        crossed = [one if one < budget else None for one in times]
        search.add(Point(position, 1.0, 1.0, budget, tuple(seed(one, number=index) for index, one in enumerate(crossed))))
    assert search.best is not None
    assert [one.crossed for one in search.best.seeds] == list(kinds[1])


def test_a_point_that_was_cut_short_is_proposed_again_with_the_whole_budget() -> None:
    search = Search(family(budget=300, patience=5.0), "sgd")
    proposals = iter(search)
    first, budget = next(proposals)
    assert budget == 300
    assert search.add(Point(first, 1.0, 1.0, 300, (seed(20), seed(20), seed(200))))
    position, budget = next(proposals)
    assert budget == 105
    assert not search.add(Point(position, 1.0, 1.0, budget, (seed(10), seed(10), seed(None))))
    assert position not in search.points
    assert next(proposals) == (position, 300)
    assert search.add(Point(position, 1.0, 1.0, 300, (seed(10), seed(10), seed(None))))
    assert list(search.points) == [first, position]


def test_a_diverged_point_has_no_second_chance() -> None:
    """It failed by more than a shortened budget: the whole budget would change nothing."""
    search = Search(family(budget=300, patience=5.0), "sgd")
    proposals = iter(search)
    first, budget = next(proposals)
    assert search.add(Point(first, 1.0, 1.0, budget, (seed(20), seed(20), seed(20))))
    position, budget = next(proposals)
    assert search.add(Point(position, 1.0, 1.0, budget, (seed(10), seed(10), seed(None, diverged=True))))
    assert next(proposals)[0] != position


def test_basins_count_as_the_present_cut_off_sees_them() -> None:
    """An early point may have passed with more epochs than its neighbours will get."""
    search = Search(family(patience=3.0, around=1), "adamw")
    crossed = {Position(7, 4): 20, Position(1, 0): 100, Position(13, 8): 50}
    for position, epochs in crossed.items():
        search.points[position] = Point(position, 1.0, 1.0, 10_000, (seed(epochs),))
    assert search.budget == 63
    assert [tuple(each[:2]) for each in search._basins()] == [(7, 4), (13, 8)]
    search.points[Position(13, 8)] = Point(Position(13, 8), 1.0, 1.0, 63, (SeedResult(0, "id", 63, None, 0.9, 0.5, False),))
    assert search._basins()[1] == Position(13, 8), "neither passes within the budget, and this one is more accurate"
