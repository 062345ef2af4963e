"""The curves in a terminal: where dots are, and letters where there are no colours."""

from __future__ import annotations

from egalitarian.lab.console.display import text_plot


def test_the_text_plot_puts_dots_where_the_curve_is() -> None:
    plot = text_plot({"one": [(0, 0.0), (9, 0.0), (99, 1.0)]}, {}, width=40, height=5).plain.splitlines()
    assert plot[0].rstrip().endswith("⠉")  # the top row of dots
    assert "100% ┤" in plot[0]
    assert plot[4].startswith("  0% ┤")
    assert plot[6].split()[:3] == ["1", "10", "100"]


def test_the_text_plot_has_letters_where_there_are_no_colours() -> None:
    curves = {"one": [(0, 0.0), (9, 0.0)], "two": [(0, 1.0), (9, 1.0)]}
    plot = text_plot(curves, {"one": "a", "two": "b"}, width=30, height=4, letters=True).plain.splitlines()
    assert set(plot[0][6:]) <= {"b", " "}
    assert set(plot[3][6:]) <= {"a", " "}
    assert all(len(line) <= 38 for line in plot)
