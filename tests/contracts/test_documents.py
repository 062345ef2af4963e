"""Every page does what it says: its Python runs, its commands are the command line's, its links lead somewhere."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
from documents import (
    PAGES,
    ROOT,
    SHELL,
    Command,
    anchors,
    blocks,
    commands,
    execute,
    links,
    name_of,
    namespace,
    program,
    prose,
    python_blocks,
    quick_start,
    split,
    without_blocks,
)

from egalitarian.lab.config import catalog
from egalitarian.lab.console.cli import app
from egalitarian.lab.console.options import choose_methods, split_each
from egalitarian.lab.problems import cifar10, cifar10_test, mnist
from egalitarian.lab.tuning.plan import PLANS, chosen, load_plan

README = ROOT / "README.md"
LINKED = (*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md")))
SIGNATURES = ROOT / "docs" / "api.md"
"""Its blocks are signatures, held to the code by tests/contracts/test_api_page.py, and doctests."""
PROGRAMS = [page for page in PAGES if page != SIGNATURES and program(page.read_text(encoding="utf-8"))]
LAB: Any = typer.main.get_command(app)
REFUSED = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""Of typer's own click, wherever it keeps it."""


# Python


@pytest.fixture
def few_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST and CIFAR-10 are small files for the pages that read them."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "lab"))
    from pictures import write_cifar, write_mnist

    folder = tmp_path / "data"
    monkeypatch.setenv("EGALITARIAN_DATA", str(folder))
    for read, dataset in (
        (mnist, write_mnist(folder)),
        (cifar10, write_cifar(folder)),
        (cifar10_test, write_cifar(folder)),
    ):
        monkeypatch.setattr(read, "__defaults__", (*(read.__defaults__ or ())[:-1], dataset))


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_the_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one namespace, in an empty folder. The README's quick start and plan have tests of their own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names, text = namespace(), page.read_text(encoding="utf-8")
    for block in python_blocks(text) if page == README else program(text):
        execute(block, page, names)


def test_blocks_that_another_test_executes_are_executed_there() -> None:
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            file, _, name = block.marked.partition(": ")
            if name:
                assert name_of(page) in (ROOT / file).read_text(encoding="utf-8").replace('" / "', "/"), block.marked
                assert f'"{name}"' in (ROOT / file).read_text(encoding="utf-8"), block.marked


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """Python without its language would escape these tests."""
    for block in blocks(page.read_text(encoding="utf-8")):
        assert block.language in (*SHELL, "python", "pycon", "toml", "text", "json", "bibtex"), f"line {block.line}"
        if block.language in ("", "text"):
            assert not re.search(r"^(?:import|from) \w+", block.code, re.MULTILINE), f"{name_of(page)}, line {block.line}"


# commands


def parsed(words: Sequence[str]) -> Mapping[str, Any]:
    """What the command line's own parser makes of a command, which is not run; nothing, when it only asks for help."""
    program, *arguments = words
    assert program == "egalitarian"
    name = next(iter(arguments), "--help")
    if not name.startswith("-"):
        assert name in LAB.commands, f"there is no command {name!r}, there are {', '.join(LAB.commands)}"
    command, given = (LAB, arguments) if name.startswith("-") else (LAB.commands[name], arguments[1:])
    try:
        with command.make_context(name, list(given), resilient_parsing=False) as context:
            return dict(context.params)
    except typer.Exit:
        return {}


def known_options(command: str) -> set[str]:
    return {option for parameter in LAB.commands[command].params for option in (*parameter.opts, *parameter.secondary_opts)}


def check_names(command: str, given: Mapping[str, Any]) -> None:
    """Experiments, methods, settings and families that a command names are the lab's; a reader's own files are not here."""
    methods, changes = split_each(given.get("methods") or given.get("method")), given.get("changes") or ()
    if command == "tune" and (given["plan"] is None or str(given["plan"]) in PLANS):
        for family in chosen(load_plan(given["plan"]), given["family"]):
            family.only(tuple(methods))
    if command in ("run", "grok", "show"):
        single = given.get("experiment")
        for name in given.get("experiments") or ([single] if single else []):
            if not name.endswith(".toml"):
                choose_methods(catalog.load(name, changes, methods), methods)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_command_lines_are_understood(page: Path) -> None:
    for command in commands(page.read_text(encoding="utf-8"), "egalitarian"):
        where = f"{name_of(page)}, line {command.line}: {' '.join(command.words)}"
        if command.inline:
            check_span(command, where)
            continue
        try:
            parsed(command.words)
        except REFUSED as error:
            pytest.fail(f"{where}: {error}")


def check_span(command: Command, where: str) -> None:
    """In running text what follows may be a placeholder: the command exists, and so do its options."""
    name, *rest = command.words[1:]
    if name.startswith("-"):
        parsed(command.words[:2])
        return
    assert name in LAB.commands, f"{where}: there is no such command"
    options = {word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)} - {"--help", "-h"}
    assert options <= known_options(name), f"{where}: no option {', '.join(options - known_options(name))}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_command_lines_name_what_the_lab_has(page: Path) -> None:
    for command in commands(page.read_text(encoding="utf-8"), "egalitarian"):
        if not command.inline and (given := parsed(command.words)):
            try:
                check_names(command.words[1], given)
            except ValueError as error:
                pytest.fail(f"{name_of(page)}, line {command.line}: {' '.join(command.words)}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_has_the_targets(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for command in commands(page.read_text(encoding="utf-8"), "make"):
        named = {word for word in command.words[1:] if "=" not in word and not word.startswith("-")}
        assert named <= targets, f"{name_of(page)}, line {command.line}: make has no {', '.join(named - targets)}"


# links


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in links(text):
        parts = urlsplit(link)
        if parts.scheme:
            assert is_address(link), link
            continue
        target = page.parent / parts.path if parts.path else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.resolve().is_relative_to(ROOT), f"{link} leads out of the repository"
        if parts.fragment:
            assert target.suffix == ".md", link
            assert parts.fragment in anchors(target.read_text(encoding="utf-8")), f"{link}: no such heading"


def is_address(link: str) -> bool:
    """Whether it has the form of one; nobody is asked."""
    parts = urlsplit(link)
    host = parts.hostname or ""
    return parts.scheme in ("https", "http") and bool(re.fullmatch(r"(?:[a-z0-9-]+\.)+[a-z]{2,}", host)) and " " not in link


# the tools of these tests

PAGE = """\
# A page: `code` and [a link](x.md)

Read `egalitarian run NAME
--seeds 0-7` and ``make `x` ``. See [the other](docs/a.md "title"), ![a picture](a.png), not `[code](no.md)`.

```
egalitarian run addition-97 \\
    --seeds 0-1   # two
$ egalitarian list | head
no egalitarian list here
make test DEVICE=cuda && echo
```

<!-- executed by tests/contracts/test_docs.py: a.py -->
```python
raise SystemExit
```
- in a list

  ```python
  first = 1
  if first:
      second = 2
  ```

```pycon
>>> 1
1
```

## The same

## The same
"""


def test_blocks_are_found() -> None:
    found = blocks(PAGE)
    assert [block.language for block in found] == ["", "python", "python", "pycon"]
    assert [PAGE.splitlines()[block.line - 1].strip() for block in found] == [
        block.code.splitlines()[0].strip() for block in found
    ]
    assert [block.marked for block in found] == ["", "tests/contracts/test_docs.py: a.py", "", ""]
    assert without_blocks(PAGE).count("\n") == PAGE.count("\n")
    with pytest.raises(ValueError, match="line 1"):
        blocks("```python\nx = 1\n")


def test_only_a_page_s_own_blocks_are_its_program() -> None:
    (block,) = python_blocks(PAGE)
    names: dict[str, Any] = {}
    execute(block, Path("page.md"), names)
    assert names["second"] == 2
    ast.parse(block.code)


def test_a_block_that_fails_names_its_line() -> None:
    (block,) = python_blocks("one\n\n```python\nx = 1\ny = x / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as raised:
        execute(block, Path("page.md"), {})
    assert raised.traceback[-1].lineno + 1 == 5


def test_a_session_must_print_what_it_shows() -> None:
    (block,) = program("```pycon\n>>> y = x + 1\n>>> y\n3\n```\n")
    names: dict[str, Any] = {"x": 2}
    execute(block, Path("page.md"), names)
    assert names["y"] == 3
    with pytest.raises(doctest.DocTestFailure):
        execute(block, Path("page.md"), {"x": 3})


def test_a_quick_start_is_a_program_of_its_own() -> None:
    whole = "```python\nimport torch\nmodel = 1\n```\n```python\nx = 1\n```\n"
    start = quick_start(whole)
    assert start is not None
    assert start.code == "import torch\nmodel = 1\n"
    assert [block.code for block in python_blocks(whole)] == ["x = 1\n"]
    assert quick_start(whole.replace("model = 1", "print(model)")) is None


def test_commands_are_found() -> None:
    assert commands(PAGE, "egalitarian") == [
        Command(("egalitarian", "run", "addition-97", "--seeds", "0-1"), 7, False),
        Command(("egalitarian", "list"), 9, False),
        Command(("egalitarian", "run", "NAME", "--seeds", "0-7"), 3, True),
    ]
    assert commands(PAGE, "make")[0] == Command(("make", "test", "DEVICE=cuda"), 11, False)
    assert split("a d#e 'b c' > f  # g") == ("a", "d#e", "b c")


@pytest.mark.parametrize(
    "line",
    [
        "egalitarian rnu addition-97",
        "egalitarian run addition-97 --seed 0",
        "egalitarian run addition-97 --epochs many",
        "egalitarian show",
        "egalitarian list addition-97",
        "egalitarian --verson",
    ],
)
def test_commands_that_are_none_fail(line: str) -> None:
    with pytest.raises((REFUSED, AssertionError)):
        parsed(split(line))


@pytest.mark.parametrize(
    "line", ["egalitarian run addition-97 --seeds 0", "egalitarian run --help", "egalitarian --version"]
)
def test_commands_are_parsed_and_not_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parsed(split(line))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "egalitarian run adition-97",
        "egalitarian run addition-97 -m egt",
        "egalitarian grok addition-97 --set optim.rl=1",
        "egalitarian tune subtraction",
        "egalitarian tune addition -m egt",
    ],
)
def test_names_that_the_lab_does_not_have_fail(line: str) -> None:
    with pytest.raises(ValueError):
        check_names(split(line)[1], parsed(split(line)))


def test_links_are_found() -> None:
    assert links(PAGE) == ["x.md", "docs/a.md", "a.png"]
    assert links('<a href="b.md">b</a> <img width="3" src="c.png">\n\n[d]: d.md\n') == ["d.md", "b.md", "c.png"]


def test_anchors_are_github_s() -> None:
    assert anchors(PAGE) == {"a-page-code-and-a-link", "the-same", "the-same-1"}
    assert anchors("## What `eg.polar` is, exactly\n") == {"what-egpolar-is-exactly"}


@pytest.mark.parametrize(
    ("link", "good"), [("https://arxiv.org/abs/1", True), ("https//x.org", False), ("https://localhost/", False)]
)
def test_addresses_have_a_form(link: str, good: bool) -> None:
    assert is_address(link) is good


def test_prose_is_what_a_reader_reads(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title of 4\n\nOne two three [four](five6.md). "
        "Six `seven 8 nine` H200 CIFAR-10, on 2026-11-15\nten 12 000 times.\n\n"
        "| no | 1 |\n|---|---|\n| 2 | 3 |\n\n<!-- 4 words in here -->\n```\n5 6 7\n```\n\n"
        "1. Eleven (8-9), **twelve**.\n2. `Thirteen`.\n![7 of 8](x.png)\n"
    )
    found = prose(page)
    assert found.words == 4 + 4 + 10 + 3 + 1
    assert found.numbers == 1 + 2 + 2
    assert found.sentence == 3.5
