"""Curves in a terminal: braille dots over logarithmic epochs, one colour per curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each of a braille character's 4 x 2 dots, from the top left."""

Curve = Sequence[tuple[int, float]]
"""(epoch, accuracy)."""


def text_plot(
    curves: Mapping[str, Curve], looks: Mapping[str, str], width: int = 68, height: int = 10, letters: bool = False
) -> Text:
    """Accuracies from 0 to 1 against epochs trained (from 1) on a logarithmic axis. The curve drawn last is in front.

    `looks` has a colour for each curve; with `letters`, where there are none to be seen, the letter to draw it with.
    """
    last = max((epoch for curve in curves.values() for epoch, _ in curve), default=0) + 1
    decades = max(1.0, math.log10(max(last, 1)))
    bits = [[0] * width for _ in range(height)]
    front = [[""] * width for _ in range(height)]
    for name, curve in curves.items():
        for column, level in _dots(curve, decades, width, height):
            row, place = divmod(4 * height - 1 - level, 4)
            bits[row][column // 2] |= _DOTS[place][column % 2]
            front[row][column // 2] = looks.get(name, "" if not letters else "*")
    text = Text()
    for row in range(height):
        label = {0: "100%", height // 2: "50%", height - 1: "0%"}.get(row, "")
        text.append(f"{label:>4} ┤", style="dim")
        for bit, look in zip(bits[row], front[row], strict=True):
            text.append(" " if not bit else look if letters else chr(0x2800 + bit), style=None if letters else look or None)
        text.append("\n")
    return text.append(_axis(decades, width))


def _dots(curve: Curve, decades: float, width: int, height: int) -> list[tuple[int, int]]:
    """(column, level) of every dot, half a character wide and a quarter high, joined between points."""
    dots: list[tuple[int, int]] = []
    for epoch, value in curve:
        column = round(math.log10(epoch + 1) / decades * (2 * width - 1))
        level = round(min(max(value, 0.0), 1.0) * (4 * height - 1))
        if dots and column > dots[-1][0]:
            (before, start), steps = dots[-1], column - dots[-1][0]
            dots += [(before + step, round(start + (level - start) * step / steps)) for step in range(1, steps)]
        dots.append((column, level))
    return dots


def _axis(decades: float, width: int) -> Text:
    line, labels = ["─"] * width, [" "] * (width + 8)
    for power in range(math.floor(decades + 1e-9) + 1):
        column = min(round(power / decades * (width - 1)), width - 1)
        line[column] = "┬"
        for offset, letter in enumerate(str(10**power)):
            labels[column + offset] = letter
    return Text(f"     └{''.join(line)}\n      {''.join(labels).rstrip()}\n", style="dim")
