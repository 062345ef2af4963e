"""A window on a lattice of settings: its points, in which order, and where it moves when the best is on its edge."""

from __future__ import annotations

from dataclasses import dataclass, replace

Place = tuple[int, int | None]
"""Powers of the learning rate's and of the decay's factor, from the centre; None: no decay at all."""


@dataclass(frozen=True)
class Window:
    """`size` learning rates times `size` decays, and with each learning rate no decay where that is wanted."""

    size: int
    no_decay: bool = False
    middle: tuple[int, int] = (0, 0)

    def places(self) -> list[Place]:
        """From the middle outwards: the likely ones first, so that they can cut the others short."""
        reach = range(-(self.size // 2), self.size // 2 + 1)
        inner = sorted(((x, y) for x in reach for y in reach), key=_from_the_middle)
        lr, decay = self.middle
        found: list[Place] = [(lr + x, decay + y) for x, y in inner]
        without = sorted(reach, key=abs) if self.no_decay else []
        return found + [(lr + x, None) for x in without]

    @property
    def corners(self) -> tuple[Place, Place]:
        """Where both settings are smallest, and where both are largest."""
        (lr, decay), half = self.middle, self.size // 2
        return (lr - half, decay - half), (lr + half, decay + half)

    def outward(self, place: Place) -> tuple[int, int]:
        """In which direction the place is on the edge, for each axis; (0, 0): it is inside.

        Nothing lies beyond no decay, so that is no edge; the smallest decay above it is one.
        """
        lr, decay = place
        return self._side(lr - self.middle[0]), 0 if decay is None else self._side(decay - self.middle[1])

    def moved(self, by: tuple[int, int]) -> Window:
        return replace(self, middle=(self.middle[0] + by[0], self.middle[1] + by[1]))

    def _side(self, away: int) -> int:
        half = self.size // 2
        return (away >= half) - (away <= -half)


def _from_the_middle(place: tuple[int, int]) -> tuple[int, int, int, int]:
    x, y = place
    return max(abs(x), abs(y)), abs(x) + abs(y), x, y


def value(centre: float, factor: float, power: int | None) -> float:
    """A setting at its place on the lattice, to three digits; None: 0."""
    if power is None:
        return 0.0
    return centre if power == 0 else float(f"{centre * factor**power:.3g}")
