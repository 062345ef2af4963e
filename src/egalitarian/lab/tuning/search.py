"""The search for a method's best point: a window that follows it until it is inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Point
from egalitarian.lab.tuning.window import Place, Window

Trial = Callable[[Place, int], Point]
"""Trains the point at a place, so many epochs at most."""


@dataclass
class Search:
    """What has been tried so far, in order, and where the window has been."""

    family: Family
    points: dict[Place, Point] = field(default_factory=dict)
    path: list[Window] = field(default_factory=list)
    done: bool = False

    @property
    def best(self) -> Point | None:
        return min(self.points.values(), key=lambda point: point.rank(self.family.score), default=None)

    @property
    def inside(self) -> bool:
        """Whether the best point has tried neighbours on all sides."""
        return self.done and self.best is not None and self.path[-1].outward(self.best.place) == (0, 0)

    @property
    def moves(self) -> int:
        return max(0, len(self.path) - 1)

    def run(
        self, trial: Trial, tell: Callable[[str], object] = lambda text: None, keep: Callable[[], object] = lambda: None
    ) -> None:
        """Tries all points of the window, moves it one place towards a best that is on its edge, and so on.

        `tell` hears of moves; `keep` is called when there is one more point.
        """
        self.path = [Window(self.family.size, self.family.no_decay)]
        while True:
            self._fill(self.path[-1], trial, keep)
            best = self.best
            assert best is not None
            outward = self.path[-1].outward(best.place)
            if outward == (0, 0) or self.moves == self.family.moves:
                break
            self.path.append(self.path[-1].moved(outward))
            tell(f"the best point is on the grid's edge: move {self.moves} of at most {self.family.moves}")
        self.done = True

    @property
    def budget(self) -> int:
        """Of the next point: no more than a multiple of what the best has needed. A best that has failed on a seed cuts
        nothing short: one that is slow and sure would win."""
        best = self.best
        if best is None or self.family.score != "epochs" or best.failed:
            return self.family.budget
        return min(self.family.budget, math.ceil(self.family.cut * (best.median + 1)))

    def _fill(self, window: Window, trial: Trial, keep: Callable[[], object]) -> None:
        for place in window.places():
            if place not in self.points:
                self.points[place] = self._tried(place, trial)
                keep()

    def _tried(self, place: Place, trial: Trial) -> Point:
        """A point that failed for having been cut short, and is otherwise as fast as the best, is tried to the end: a cut
        that the best itself was never under would decide by the order of trying."""
        best, budget = self.best, self.budget
        found = trial(place, budget)
        if best is None or budget == self.family.budget or not found.failed or found.median > best.median:
            return found
        return trial(place, self.family.budget)
