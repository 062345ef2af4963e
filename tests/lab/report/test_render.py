"""A table as Markdown, CSV and LaTeX."""

from __future__ import annotations

import re

from egalitarian.lab.report import Block, Table, markdown, markdown_lines, to_csv
from egalitarian.lab.report.render import escape_latex, latex


def test_latex_escapes_and_balances() -> None:
    nasty = Table(
        "x", "50 % of a_b & c", "Table #1", ("a_1", "b, c"), (Block("$x^2$", (("~\\", "{>} < × –"),)),), ("100 %",), ()
    )
    text = latex(nasty)
    assert r"50 \% of a\_b \& c" in text
    assert r"\textasciitilde{}\textbackslash{}" in text
    assert r"\{$>$\} $<$ $\times$ --" in text
    assert r"\$x\textasciicircum{}2\$" in text
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    for sign in "%&_#":
        assert all(r == "\\" for r in re.findall(rf"(.)\{sign}", text.split("\\caption", 1)[1].replace(" & ", "")))


def test_escaping_leaves_plain_text_alone() -> None:
    assert escape_latex("EGD, randomized, rank 128") == "EGD, randomized, rank 128"


def test_a_bar_in_a_markdown_cell_stays_a_cell() -> None:
    found = Table("x", "x", "", ("a",), (Block("", (("1|2",),)),), (), ())
    assert "| 1\\|2 |" in markdown(found)


def test_no_records_are_an_empty_csv() -> None:
    assert to_csv([]) == "nothing\n"


def test_what_a_user_calls_things_breaks_no_table() -> None:
    table = Table("t", "one\ntwo", "", ("a", "b"), (Block("up\ndown", (("[x] y", "1\n2"),)),), (), ())
    lines = markdown(table).splitlines()
    assert lines[0] == "## one two"
    assert lines[-2:] == ["| **up down** |  |", "| [x] y | 1 2 |"]
    assert "{}[x] y & " in latex(table), "or LaTeX takes it for the length of the row before"


def test_columns_of_a_markdown_table_are_aligned_on_request() -> None:
    lines = markdown_lines(("a", "b"), [Block("", (("1", "2|3"),))], align="lr")
    assert lines == ["| a | b |", "|---|---:|", "| 1 | 2\\|3 |"]
