"""What users type, and the help of every command in a terminal of 80 columns: it fits, wraps there, and shows no types."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from egalitarian.lab.console.cli import app, main
from egalitarian.lab.console.options import parse_seeds

WIDTH = 80
COMMANDS = ["", *(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)]


@pytest.fixture(params=COMMANDS)
def helped(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What a command's --help prints, line by line."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "dumb")
    assert main([*filter(None, [request.param]), "--help"]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_it_fits(helped: list[str]) -> None:
    assert max(map(len, helped)) <= WIDTH


def test_it_shows_no_types_of_python(helped: list[str]) -> None:
    assert not [line for line in helped if re.search(r"<(bool|str|int|float|path|file|list)\b", line)]


def test_paragraphs_wrap_where_the_terminal_ends(helped: list[str]) -> None:
    prose = helped[: next(number for number, line in enumerate(helped) if line.startswith("╭"))]
    for line, following in pairwise(prose):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > WIDTH - 1, line


def test_no_line_is_left_with_one_word(helped: list[str]) -> None:
    alone = [
        line for line in helped if re.fullmatch(r"[ │]*[^\s│]+ *│?", line) and not re.search(r"\[required\]|[╭╰]", line)
    ]
    assert not alone


def test_every_command_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    main(["--help"])
    listed = re.findall(r"│ (\w+) +[A-Z].*\. +│", capsys.readouterr().out)
    assert listed == COMMANDS[1:]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-2,5", [0, 1, 2, 5]), ("3", [3]), ("4,3,7-8", [4, 3, 7, 8]), ("1,1", [1])]
)
def test_seeds_are_read_in_the_order_given(text: str, numbers: list[int]) -> None:
    assert parse_seeds(text) == numbers
