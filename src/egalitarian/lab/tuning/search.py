"""The search: a coarse grid, points beyond its edges, points around the best basins, and the third knob.

Every method gets as many points. Only a best point on an edge adds some, for every method alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from egalitarian.lab.tuning.plan import Family, Tuned
from egalitarian.lab.tuning.points import Point, Position

COARSE = 2
"""Steps between neighbours on the coarse grid."""
RADIUS = 6
"""Steps around a point within which untried positions are looked for."""


def coarse(family: Family) -> list[Position]:
    """The coarse grid, the middle first, so that its points set the budget of the others.

    With each learning rate come every second of: no decay, the first decay, the second, ... Neighbouring learning rates
    have those that the other leaves out.
    """
    decays: list[int | None] = [None, *range(0, COARSE * family.decays, COARSE)]
    found = [
        Position(COARSE * lr, decay)
        for lr in range(family.lrs)
        for index, decay in enumerate(decays)
        if (lr + index) % 2 == 0
    ]
    middle = Position(family.lrs - 1, family.decays - 1)
    return sorted(found, key=lambda position: _distance(position, middle))


def _distance(one: Position, other: Position) -> tuple[int, int, int, int]:
    """Between two positions; ties go to the smaller setting."""
    lr, decay = one.lr - other.lr, _row(one) - _row(other)
    return max(abs(lr), abs(decay)), abs(lr) + abs(decay), one.lr, _row(one)


def _row(position: Position) -> int:
    """The decay's step. No decay counts as two grid rows below the first decay: between them lies the first smaller one."""
    return -2 * COARSE if position.decay is None else position.decay


@dataclass
class Search:
    """Proposes positions one after another: `for position, budget in search: search.add(train(position, budget))`.

    A proposal depends on the points that were added before it.
    """

    family: Family
    method: str
    points: dict[Position, Point] = field(default_factory=dict)
    """Every point so far, in the order of the proposals."""
    beyond: int = 0
    """Points that were proposed beyond an edge."""
    stage: str = ""
    """What is searched now, for messages."""
    done: bool = False

    @property
    def best(self) -> Point | None:
        return min(self.points.values(), key=self._rank, default=None)

    @property
    def inside(self) -> bool:
        """Whether the best point has points on both sides of its learning rate, and of its decay."""
        return self.done and self.best is not None and self.outward(self.best.position) == (0, 0)

    @property
    def budget(self) -> int:
        """The epochs of the next point: at most a multiple of those of the best point.

        A best point with a failed seed shortens no budget: a slower point that never fails would win.
        """
        best, whole = self.best, self.family.budget * self.family.readings
        if best is None or self.family.score != "epochs" or best.failed:
            return whole
        return min(whole, math.ceil(self.family.patience * (best.median + 1)))

    def outward(self, position: Position) -> tuple[int, int]:
        """For learning rate and decay, the direction (-1 or 1) in which nothing was tried beyond a position; else 0.

        No decay is not an edge, since nothing lies beyond it. The smallest positive decay is one.
        """
        tried = [point for point in self.points if not point.third]
        lrs = [each.lr for each in tried]
        decays = [each.decay for each in tried if each.decay is not None]
        return _side(position.lr, lrs), 0 if position.decay is None else _side(position.decay, decays)

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        """The next position and its budget. The point must be added before the next one is asked for."""
        family, tuned = self.family, self.family.methods[self.method]
        yield from self._each("coarse grid", coarse(family))
        yield from self._beyond()
        for number, basin in enumerate(self._basins(), 1):
            first = family.around - family.around // 2
            yield from self._each(f"basin {number}", self._around(basin, first))
            yield from self._each(f"basin {number}", self._around(self._best_near(basin), family.around - first))
        yield from self._beyond()
        yield from self._each("third knob", self._thirds(tuned))
        yield from self._each("around the best", self._around(self._centre, family.thirds - len(tuned.third)))
        self.done = True

    def add(self, point: Point) -> bool:
        """Adds a proposed point; False for one that was stopped early, which is proposed again with the whole budget.

        Such a point has failed by its shortened budget alone, but its median is as small as the best one's. Without a
        second chance the order of the proposals would decide: the best point may never have had so short a budget.
        """
        best, whole = self.best, self.family.budget * self.family.readings
        short = point.budget < whole and point.failed and not point.diverged
        if best is not None and short and point.median <= best.median:
            return False
        self.points[point.position] = point
        return True

    def _each(self, stage: str, positions: Iterable[Position]) -> Iterator[tuple[Position, int]]:
        self.stage = stage
        for position in positions:
            yield position, self.budget
            if position not in self.points:  # it was stopped early
                yield position, self.family.budget * self.family.readings

    def _beyond(self) -> Iterator[tuple[Position, int]]:
        """Three points at a time beyond the edge that the best point is on, until it is inside or there are no more."""
        while self.beyond < self.family.further and any(self.outward(self._centre)):
            positions = _next_beyond(self._centre, self.outward(self._centre))[: self.family.further - self.beyond]
            self.beyond += len(positions)
            yield from self._each("beyond the edge", positions)

    def _basins(self) -> list[Position]:
        """The best points, none of them a neighbour of a better one.

        All count as they would with the present budget: an early point may have had more epochs than its neighbours will.
        """
        found: list[Position] = []
        for point in sorted(self.points.values(), key=lambda point: self._rank(point.within(self.budget))):
            if not any(_are_neighbours(point.position, other) for other in found):
                found.append(point.position)
        return found[: self.family.basins]

    def _best_near(self, basin: Position) -> Position:
        """The best point of a basin's neighbourhood so far."""
        near = [point for position, point in self.points.items() if _are_neighbours(position, basin)]
        return min(near, key=self._rank).position

    def _around(self, centre: Position, count: int) -> list[Position]:
        """The nearest positions that were not tried, at most `count` of them.

        Next to no decay lies the decay one grid row below the first.
        """
        reach = range(-RADIUS, RADIUS + 1)
        near = [Position(centre.lr + x, _row(centre) + y) for x, y in itertools.product(reach, reach)]
        near = [each for each in near if each.decay is not None and each.decay >= self._lowest]
        near += [Position(centre.lr + x, None) for x in reach] if centre.decay is None else []
        untried = [each for each in near if each not in self.points]
        return sorted(untried, key=lambda position: _distance(position, centre))[: max(0, count)]

    @property
    def _lowest(self) -> int:
        """The smallest decay's step that a point around another may have."""
        tried = [each.decay for each in self.points if each.decay is not None]
        return min(tried, default=0) - COARSE

    def _thirds(self, tuned: Tuned) -> list[Position]:
        return [self._centre._replace(third=number) for number in range(1, min(len(tuned.third), self.family.thirds) + 1)]

    @property
    def _centre(self) -> Position:
        """The position of the best point without the third knob."""
        return min((each for each in self.points.values() if not each.position.third), key=self._rank).position

    def _rank(self, point: Point) -> tuple[float, ...]:
        return point.rank(self.family.score)


def _side(value: int, tried: list[int]) -> int:
    """-1 or 1 at the smallest or the largest of several values; 0 between them."""
    return (value >= max(tried, default=value)) - (value <= min(tried, default=value))


def _are_neighbours(one: Position, other: Position) -> bool:
    """Whether two positions may lie in one basin: within two grid steps of each other."""
    return abs(one.lr - other.lr) <= 2 * COARSE and abs(_row(one) - _row(other)) <= 2 * COARSE


def _next_beyond(position: Position, outward: tuple[int, int]) -> list[Position]:
    """Three positions one grid step beyond an edge, or beyond a corner."""
    (lr, decay, _), x, y = position, COARSE * outward[0], COARSE * outward[1]
    if decay is None:
        return [Position(lr + x, each) for each in (None, 0, COARSE)]
    if x and y:
        return [Position(lr + x, decay), Position(lr, decay + y), Position(lr + x, decay + y)]
    if x:
        return [Position(lr + x, decay + each) for each in (0, -COARSE, COARSE)]
    return [Position(lr + each, decay + y) for each in (0, -COARSE, COARSE)]
