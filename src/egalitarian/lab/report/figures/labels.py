"""Names of lines without a key: flags, each a name on a pole above its point, placed so that none hides another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from egalitarian.lab.report.figures.style import LETTER, SMALL, ink, literal

ROW = 0.14
"""Inches: the height of a row of flags."""
TITLE = 0.28
"""Inches: a panel's title, and the space between two panels."""
EPS = 1e-6
"""The tolerance when positions are compared, as a share of the axis' width."""
TEXT_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
"""The background of a text, which covers the poles behind it."""
GAP = 0.05
"""Inches between a flag's pole and its text."""


class Flag(NamedTuple):
    """A name, and the point of a line that it belongs to."""

    text: str
    x: float
    y: float
    colour: str


class Placed(NamedTuple):
    """A flag with a position: its pole and the ends of its text, as shares of the axis' width. Row 0 is the lowest."""

    flag: Flag
    pole: float
    left: float
    right: float
    row: int

    def hides(self, other: Placed) -> int:
        """2 if the texts overlap, 1 if the pole of one is behind the text of the other, else 0."""
        if self.row == other.row:
            return 2 * (self.left < other.right and other.left < self.right)
        upper, lower = (self, other) if self.row > other.row else (other, self)
        return int(lower.left < upper.pole < lower.right)


def place_flags(axis: Axes, flags: Sequence[Flag], width: float) -> list[Placed]:
    """Puts each flag's text to the right or left of its pole, in the lowest row in which it hides no other.

    Flags at the right end have their texts on the left, all others on the right. It tries every number of flags at the
    right end. The best result hides least; among equals it has the fewest rows. Set the limits of the axis before.

    Args:
        width: the axis' width in inches.
    """
    ordered = sorted(flags, key=lambda each: each.x)
    tries = [_placed(axis, ordered[:split], ordered[split:], width) for split in range(len(ordered), -1, -1)]
    return min(tries, key=_cost)


def _placed(axis: Axes, left: Sequence[Flag], right: Sequence[Flag], width: float) -> list[Placed]:
    """Places the flags `left` with texts to the right, and the flags `right` with texts to the left.

    A text that is too long for its side is moved inside the axis.
    """
    placed: list[Placed] = []
    for flag in [*reversed(left), *right]:
        pole, length = share_of(axis, flag.x), (LETTER * len(flag.text) + 2 * GAP) / width
        begin = max(0.0, min(pole, 1 - length) if flag in left else pole - length)
        tries = [Placed(flag, pole, begin, begin + length, row) for row in range(len(left) + len(right))]
        placed.append(min(tries, key=lambda each: (sum(map(each.hides, placed)), each.row)))
    return placed


def _cost(placed: Sequence[Placed]) -> tuple[int, int]:
    hidden = sum(one.hides(other) for index, one in enumerate(placed) for other in placed[:index])
    return hidden, max((each.row for each in placed), default=0)


def share_of(axis: Axes, x: float) -> float:
    """The position of a value on the horizontal axis, from 0 to 1."""
    low, high, at = axis.get_xaxis().get_transform().transform(np.array([*axis.get_xlim(), x]))
    return float(np.clip((at - low) / (high - low), 0, 1))


def flag_panels(axes: Sequence[Axes], flags: Sequence[Sequence[Flag]], width: float, height: float) -> float:
    """Draws the flags of panels in one column. Returns by how many inches titles and flags make the column higher.

    Args:
        width: the width of each axis in inches.
        height: the height of each axis without flags, in inches.
    """
    placed = [place_flags(axis, own, width) for axis, own in zip(axes, flags, strict=True)]
    rooms = [ROW * (0.4 + max((each.row + 1 for each in own), default=0)) for own in placed]
    for axis, own, room in zip(axes, placed, rooms, strict=True):
        _draw_flags(axis, own, room, height)
    if len(axes) > 1 and (grid := axes[0].get_gridspec()) is not None:
        grid.set_height_ratios([height + room for room in rooms])
    return sum(room + TITLE for room in rooms)


def _draw_flags(axis: Axes, placed: Sequence[Placed], room: float, height: float) -> None:
    """Extends the vertical axis by the room for flags, and draws them there."""
    low, high = axis.get_ylim()
    inch = (high - low) / height
    axis.set_yticks([tick for tick in axis.get_yticks() if low <= tick <= high])
    axis.set_ylim(low, high + room * inch)
    axis.spines.left.set_bounds(low, high)
    axis.yaxis.label.set_y(0.5 * height / (height + room))
    for each in placed:
        bottom = high + ROW * (each.row + 0.2) * inch
        axis.plot([each.flag.x] * 2, [each.flag.y, bottom + 0.9 * ROW * inch], color=each.flag.colour, lw=0.7, zorder=2.5)
        side = "left" if each.left >= each.pole - EPS else "right" if each.right <= each.pole + EPS else "center"
        x = {"left": each.left, "right": each.right, "center": (each.left + each.right) / 2}[side]
        axis.annotate(
            literal(each.flag.text),
            (x, bottom),
            ({"left": 3, "right": -3, "center": 0}[side], 0),
            xycoords=axis.get_yaxis_transform(),
            textcoords="offset points",
            ha=side,
            va="bottom",
            color=ink(each.flag.colour),
            fontsize=SMALL,
            bbox=TEXT_BACKGROUND,
        )


def name_ends(axis: Axes, ends: Sequence[Flag], height: float) -> None:
    """Writes names at the right ends of lines, each at its line's height or as close as the other names allow.

    Args:
        height: the axis' height in inches.
    """
    low, high = axis.get_ylim()
    step, places = ROW * (high - low) / height, list[float]()
    ordered = sorted(ends, key=lambda each: each.y)
    for end in ordered:
        places.append(max(end.y, places[-1] + step) if places else end.y)
    over = max(0.0, places[-1] - high) if places else 0.0
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "annotation_clip": False, "fontsize": SMALL}
    for end, y in zip(ordered, places, strict=True):
        axis.annotate(literal(end.text), (axis.get_xlim()[1], y - over), (3, 0), color=ink(end.colour), **style)
