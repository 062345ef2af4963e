"""The search, without training: the window finds a planted optimum, and the cut-off decides nothing by order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import law

from egalitarian.lab.tuning.plan import Family, load_plan
from egalitarian.lab.tuning.points import Point, Position, Search, SeedResult, Window

PLAN = load_plan()


def seed(crossed: int | None, number: int = 0) -> SeedResult:
    return SeedResult(number, f"id-{number}", 10, crossed, 0.5, 0.5, diverged=False)


@pytest.mark.parametrize("size", [3, 5, 7])
def test_a_window_has_its_points_once_and_the_middle_first(size: int) -> None:
    window = Window(size, middle=(2, -1))
    positions = window.positions()
    assert len(positions) == len(set(positions)) == size**2
    assert positions[0] == (2, -1)
    away = [max(abs(lr - 2), abs(decay + 1)) for lr, decay in positions]
    assert away == sorted(away)
    with_none = Window(size, no_decay=True).positions()
    assert with_none[: size**2] == Window(size).positions()
    assert {lr for lr, decay in with_none if decay is None} == {lr for lr, _ in Window(size).positions()}


def test_the_edge_of_a_window() -> None:
    window = Window(5, middle=(1, 0))
    assert [window.outward((lr, 0))[0] for lr in (-1, 0, 1, 2, 3)] == [-1, 0, 0, 0, 1]
    assert window.outward((-1, 2)) == (-1, 1)
    assert window.outward((1, None)) == (0, 0)  # nothing lies below no decay
    assert window.outward((3, None)) == (1, 0)
    assert window.outward((1, -2)) == (0, -1)
    assert window.moved((1, -1)) == Window(5, middle=(2, -1))
    assert window.corners == ((-1, -2), (3, 2))


def family(**changes: Any) -> Family:
    return PLAN["addition"].replace(**changes)


def planted(best: tuple[int, int], tried: list[tuple[Position, int]]) -> Callable[[Position, int], Point]:
    """Epochs grow with the distance from a position; no decay never passes."""

    def trial(position: Position, budget: int) -> Point:
        tried.append((position, budget))
        lr, decay = position
        epochs = None if decay is None else 10 + 4 * (abs(lr - best[0]) + abs(decay - best[1]))
        crossed = epochs if epochs is not None and epochs < budget else None
        return Point(position, 1.0, 1.0, budget, (seed(crossed),))

    return trial


def run(search: Search, trial: Callable[[Position, int], Point]) -> list[int]:
    """Searches to the end; the number of moves before each proposal."""
    moves = []
    for position, budget in search:
        moves.append(search.moves)
        search.add(trial(position, budget))
    return moves


def test_the_window_stays_when_the_best_is_inside() -> None:
    tried: list[tuple[Position, int]] = []
    search = Search(family(size=5, moves=4))
    run(search, planted((1, -1), tried))
    assert search.best is not None
    assert search.best.position == (1, -1)
    assert (search.inside, search.moves, len(tried)) == (True, 0, 25)


def test_the_window_follows_a_best_on_its_edge_and_trains_only_what_is_new() -> None:
    tried: list[tuple[Position, int]] = []
    search = Search(family(size=5, moves=4))
    moves = run(search, planted((3, 0), tried))
    assert search.best is not None
    assert search.best.position == (3, 0)
    assert (search.inside, search.moves) == (True, 2)
    assert len(tried) == len({position for position, _ in tried}) == 25 + 2 * 5
    assert moves == [0] * 25 + [1] * 5 + [2] * 5


def test_the_window_stops_at_its_last_move_and_is_not_inside() -> None:
    tried: list[tuple[Position, int]] = []
    search = Search(family(size=3, moves=2, budget=1000))
    run(search, planted((9, 9), tried))
    assert (search.inside, search.moves, len(tried)) == (False, 2, 9 + 2 * 5)
    assert search.best is not None
    assert search.best.position == (3, 3)


@law
@given(st.integers(-5, 5), st.integers(-5, 5), st.sampled_from([3, 5]), st.booleans())
def test_a_planted_optimum_is_found_and_is_inside(lr: int, decay: int, size: int, no_decay: bool) -> None:
    tried: list[tuple[Position, int]] = []
    search = Search(family(size=size, moves=5, no_decay=no_decay, cut=1.0))
    run(search, planted((lr, decay), tried))
    assert search.best is not None
    assert search.best.position == (lr, decay)
    assert search.inside


def test_no_point_gets_more_than_a_multiple_of_the_best_before_it() -> None:
    tried: list[tuple[Position, int]] = []
    search = Search(family(size=5, cut=2.0, budget=500))
    run(search, planted((0, 0), tried))
    assert [budget for _, budget in tried] == [500] + [22] * 24
    none = Search(family(size=3, moves=0, budget=7))  # nothing passes, so nothing is cut
    tried.clear()
    run(none, planted((0, 0), tried))
    assert [budget for _, budget in tried] == [7] * 9
    accuracy = Search(family(size=3, moves=0, budget=7, score="train-accuracy"))
    assert accuracy.budget == 7


@pytest.mark.parametrize("first", [(20, 250), (10, 125)])
def test_a_cut_off_that_the_best_was_never_under_decides_nothing(first: tuple[int, int]) -> None:
    """Two points of which one is twice as fast on every seed, whichever is tried first."""
    slow, fast = (20, 20, 20, 250), (10, 10, 10, 125)
    middle, others = (slow, fast) if first == (20, 250) else (fast, slow)

    def trial(position: Position, budget: int) -> Point:
        crossed = [one if one < budget else None for one in (middle if position == (0, 0) else others)]
        return Point(position, 1.0, 1.0, budget, tuple(seed(one, number=number) for number, one in enumerate(crossed)))

    search = Search(family(size=3, moves=0, budget=300, cut=5.0))
    run(search, trial)
    assert search.best is not None
    assert [one.crossed for one in search.best.seeds] == list(fast)


def test_a_point_that_was_cut_short_is_proposed_again_with_the_whole_budget() -> None:
    search = Search(family(size=3, moves=0, budget=300, cut=5.0))
    proposals = iter(search)
    assert next(proposals) == ((0, 0), 300)
    assert search.add(Point((0, 0), 1.0, 1.0, 300, (seed(20), seed(20), seed(200))))
    position, budget = next(proposals)
    assert budget == 105
    assert not search.add(Point(position, 1.0, 1.0, budget, (seed(10), seed(10), seed(None))))
    assert position not in search.points
    assert next(proposals) == (position, 300)
    assert search.add(Point(position, 1.0, 1.0, 300, (seed(10), seed(10), seed(None))))
    assert list(search.points) == [(0, 0), position]
