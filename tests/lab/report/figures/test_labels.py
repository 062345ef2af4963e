"""Flags: names above lines hide neither each other nor each other's poles, where that is possible."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from egalitarian.lab.report.figures.labels import Flag, Placed, flag_panels, name_ends, place_flags
from egalitarian.lab.report.figures.style import styled

WIDTH = 5.0


def flags(*places: float, letters: int = 20) -> list[Flag]:
    return [Flag("n" * letters, place, 0.5, "#000000") for place in places]


def placed(*places: float, letters: int = 20) -> list[Placed]:
    axis = Figure().subplots()
    axis.set_xlim(0, 1)
    return place_flags(axis, flags(*places, letters=letters), WIDTH)


def hidden(found: list[Placed]) -> int:
    return sum(one.hides(other) for index, one in enumerate(found) for other in found[:index])


@pytest.mark.parametrize("seed", range(20))
def test_names_of_usual_length_hide_nothing(seed: int) -> None:
    draw = np.random.default_rng(seed)
    found = placed(*draw.uniform(0, 1, size=5))
    assert hidden(found) == 0
    assert all(each.left >= 0 and each.right <= 1 for each in found)


def test_names_with_room_share_a_row() -> None:
    assert {each.row for each in placed(0.1, 0.5, letters=10)} == {0}


def test_names_at_one_place_are_above_each_other() -> None:
    assert sorted(each.row for each in placed(0.4, 0.4, 0.4)) == [0, 1, 2]


def test_a_name_longer_than_the_axis_overlaps_no_other() -> None:
    found = placed(0.3, 0.6, letters=200)
    assert found[0].row != found[1].row


def test_a_pole_across_a_text_and_two_texts_in_one_place_are_told_apart() -> None:
    one = Placed(flags(0.2)[0], 0.2, 0.2, 0.5, 0)
    assert one.hides(one._replace(left=0.4, right=0.7)) == 2
    assert one.hides(one._replace(row=1, pole=0.3, left=0.3, right=0.6)) == 1
    assert one.hides(one._replace(row=1, pole=0.1, left=0.1, right=0.6)) == 0, "above it, with its pole beside it"


@styled
def test_flags_are_above_the_values_and_ticks_end_there() -> None:
    axis = Figure(figsize=(6, 2)).subplots()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    room = flag_panels([axis], [flags(0.2, 0.4)], WIDTH, 1.0)
    assert room > 0.2
    assert all(text.xy[1] > 1 for text in axis.texts)
    assert max(axis.get_yticks()) <= 1 < axis.get_ylim()[1]


@styled
def test_names_at_the_ends_of_lines_keep_their_order_and_stay_below_the_top() -> None:
    axis = Figure(figsize=(6, 2)).subplots()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    name_ends(axis, [Flag(name, 1, 1.0 - 0.001 * index, "#000000") for index, name in enumerate("abc")], 1.0)
    heights = [text.xy[1] for text in axis.texts]
    assert [text.get_text() for text in axis.texts] == ["c", "b", "a"]
    assert heights == sorted(heights)
    assert np.diff(heights).min() > 0.13
    assert heights[-1] == pytest.approx(1)
