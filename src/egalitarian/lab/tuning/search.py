"""The search for a method's best point: a window on the grid that moves until the best point is inside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Point, Position


@dataclass(frozen=True)
class Window:
    """`size` learning rates times `size` decays; with `no_decay`, also every learning rate without decay."""

    size: int
    no_decay: bool = False
    middle: tuple[int, int] = (0, 0)

    def positions(self) -> list[Position]:
        """From the middle outwards. The most promising come first, so that they set the cut-off of the others."""
        reach = range(-(self.size // 2), self.size // 2 + 1)
        offsets = sorted(((x, y) for x in reach for y in reach), key=_distance)
        lr, decay = self.middle
        found: list[Position] = [(lr + x, decay + y) for x, y in offsets]
        without = sorted(reach, key=abs) if self.no_decay else []
        return found + [(lr + x, None) for x in without]

    @property
    def corners(self) -> tuple[Position, Position]:
        """The position with both settings smallest, and the one with both largest."""
        (lr, decay), half = self.middle, self.size // 2
        return (lr - half, decay - half), (lr + half, decay + half)

    def outward(self, position: Position) -> tuple[int, int]:
        """On each axis, the direction (-1 or 1) of the edge that the position is on; 0 if it is inside.

        No decay is not an edge, since nothing lies beyond it. The smallest positive decay is one.
        """
        lr, decay = position
        return self._side(lr - self.middle[0]), 0 if decay is None else self._side(decay - self.middle[1])

    def moved(self, by: tuple[int, int]) -> Window:
        return replace(self, middle=(self.middle[0] + by[0], self.middle[1] + by[1]))

    def _side(self, offset: int) -> int:
        half = self.size // 2
        return (offset >= half) - (offset <= -half)


def _distance(offset: tuple[int, int]) -> tuple[int, int, int, int]:
    """From the middle; ties go to the smaller setting."""
    x, y = offset
    return max(abs(x), abs(y)), abs(x) + abs(y), x, y


@dataclass
class Search:
    """Proposes positions one after another: `for position, budget in search: search.add(train(position, budget))`.

    A proposal depends on the points that were added before it.
    """

    family: Family
    points: dict[Position, Point] = field(default_factory=dict)
    """Every point so far, in the order of the proposals."""
    windows: list[Window] = field(default_factory=list)
    """Every position of the window, the last one now."""
    done: bool = False

    @property
    def best(self) -> Point | None:
        return min(self.points.values(), key=lambda point: point.rank(self.family.score), default=None)

    @property
    def inside(self) -> bool:
        """Whether all neighbours of the best point were tried."""
        return self.done and self.best is not None and self.windows[-1].outward(self.best.position) == (0, 0)

    @property
    def moves(self) -> int:
        return max(0, len(self.windows) - 1)

    @property
    def budget(self) -> int:
        """The epochs of the next point: at most a multiple of those of the best point.

        A best point with a failed seed sets no cut-off: a slower point that never fails would win.
        """
        best = self.best
        if best is None or self.family.score != "epochs" or best.failed:
            return self.family.budget
        return min(self.family.budget, math.ceil(self.family.cut * (best.median + 1)))

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        """The next position and its budget. The point must be added before the next one is asked for.

        First come all positions of the window. Then the window moves one step towards a best point on its edge, and so on.
        """
        self.windows = [Window(self.family.size, self.family.no_decay)]
        while True:
            for position in self.windows[-1].positions():
                if position not in self.points:
                    yield position, self.budget
                if position not in self.points:  # it was cut short
                    yield position, self.family.budget
            assert self.best is not None
            outward = self.windows[-1].outward(self.best.position)
            if outward == (0, 0) or self.moves == self.family.moves:
                break
            self.windows.append(self.windows[-1].moved(outward))
        self.done = True

    def add(self, point: Point) -> bool:
        """Adds a proposed point; returns False for one that was cut short, which is proposed again with the whole budget.

        Such a point has failed, but its median is as small as the best one's. Without a second chance the order of the
        proposals would decide, since the best point may never have been under this cut-off.
        """
        best = self.best
        if best is not None and point.budget < self.family.budget and point.failed and point.median <= best.median:
            return False
        self.points[point.position] = point
        return True
