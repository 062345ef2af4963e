"""What users type, and the help of every command in a terminal of 80 columns: it fits, wraps there, and shows no types."""

from __future__ import annotations

import errno
import os
import re
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from egalitarian.lab.config import SpecError
from egalitarian.lab.console.cli import app, main
from egalitarian.lab.console.options import parse_seeds, write_own_file
from egalitarian.lab.runs import StoreError

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


WRONG_FOLDERS = {
    "": "--runs must be a folder, got an empty name; leave it out for runs",
    "file": "--runs must be a folder, got the file file; name another",
    "link": "--runs must be a folder, got link, a link to nowhere, which is not there; mend the link",
    "a\udcff": "--runs must have a name in UTF-8, got 'a\\udcff'; rename the folder, or name another",
}


@pytest.mark.parametrize("folder", WRONG_FOLDERS)
@pytest.mark.parametrize("words", [["list"], ["check"], ["report"], ["grok"], ["run", "addition-97"], ["tune", "addition"]])
def test_a_wrong_folder_of_runs_is_named_at_the_start(words: list[str], folder: str, command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert command(*words, "--runs", folder) == (2, "", f"egalitarian: {WRONG_FOLDERS[folder]}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_runs_come_from_the_environment_if_not_from_the_command(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGALITARIAN_RUNS", "elsewhere")
    assert "got elsewhere;" in command("check")[2]
    assert "got here;" in command("check", "--runs", "here")[2]
    monkeypatch.setenv("EGALITARIAN_RUNS", "")
    assert "no stored runs in runs and no evidence in results/evidence;" in command("check")[2]


@pytest.mark.parametrize("words", [["run", "addition-97"], ["grok"], ["tune", "addition"], ["bench"]])
def test_threads_have_a_limit(words: list[str], command) -> None:
    code, _, err = command(*words, "--threads", "9999999999")
    assert code == 2
    assert err == "egalitarian: --threads must be at most 1024, got 9999999999; one is usually best\n"


@pytest.mark.parametrize("names", ["all,nonsense", "nonsense,all"])
def test_all_hides_no_wrong_method(names: str, command) -> None:
    code, _, err = command("show", "addition-97", "-m", names)
    assert code == 2
    assert "method must be one of experiment 'addition-97', got 'nonsense'" in err


@pytest.mark.parametrize("words", [["run", "addition-97"], ["grok"], ["show", "addition-97"], ["tune", "addition"]])
@pytest.mark.parametrize("names", ["", " , "])
def test_no_method_is_not_every_method(words: list[str], names: str, command) -> None:
    assert command(*words, "-m", names) == (
        2,
        "",
        f"egalitarian: --methods must name at least one, got {names!r}; leave it out for the usual ones\n",
    )


@pytest.mark.parametrize("words", [["run", "long.toml"], ["check", "--runs", "long"], ["show", "long.toml"]])
def test_a_name_that_is_too_long_has_a_message(words: list[str], command) -> None:
    name = 300 * "n"
    code, _, err = command(*(word.replace("long", name) for word in words))
    assert code == 2
    assert re.match(rf"egalitarian: {name}(\.toml)? must be usable, got: File name too long; correct the path", err)


def test_an_own_file_is_written_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_own_file(path, "[mine]", "[mine] 1")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with patch.object(os, "fsync", side_effect=full), pytest.raises(StoreError) as caught:
        write_own_file(path, "[mine]", "[mine] 2")
    assert str(caught.value) == (
        f"{path} must be writable, got: No space left on device; free some space, or name another file"
    )
    assert path.read_text() == "[mine] 1"
    with pytest.raises(StoreError, match=r"must be writable, got: No such file or directory"):
        write_own_file(tmp_path / "nowhere" / "mine.toml", "[mine]", "[mine] 1")
    with pytest.raises(SpecError, match="got a file of another kind"):
        write_own_file(Path(os.devnull), "[mine]", "[mine] 1")


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-2,5", [0, 1, 2, 5]), ("3", [3]), ("4,3,7-8", [4, 3, 7, 8]), ("1,1", [1])]
)
def test_seeds_are_read_in_the_order_given(text: str, numbers: list[int]) -> None:
    assert parse_seeds(text) == numbers
