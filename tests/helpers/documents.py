"""The pages as the tests read them: code blocks, command lines, links and anchors, and how much prose there is.

`python tests/helpers/documents.py [PAGE...]` prints the prose statistics of pages.
"""

from __future__ import annotations

import doctest
import re
import shlex
import statistics
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
SHELL = ("", "sh", "bash", "console", "shell")
"""Languages of blocks whose lines may be commands; no language counts as one."""
FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,})[ \t]*(?P<language>[\w+-]*)[^`\n]*\n(?P<code>.*?)^[ \t]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- executed by ([^>]+?) -->[ \t]*\n\Z")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
OPERATORS = ("|", "||", "&", "&&", ";", ">", ">>", "<")


def name_of(page: Path) -> str:
    """As it is called from the root of the repository."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


# code blocks


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    """Of the page, counted from 1: where the code begins."""
    marked: str
    """What the comment above it says: `tests/contracts/test_docs.py: majority.py`; empty without one."""
    span: tuple[int, int]
    """Of the page's characters, with its fences."""


def blocks(text: str) -> list[Block]:
    """All of a page's, in order. One that is not closed is an error."""
    found = [
        Block(
            language=fenced["language"].lower(),
            code=textwrap.dedent(fenced["code"]),
            line=text.count("\n", 0, fenced.start("code")) + 1,
            marked=above[1] if (above := MARK.search(text, 0, fenced.start())) else "",
            span=fenced.span(),
        )
        for fenced in FENCED.finditer(text)
    ]
    if opened := re.search(r"^[ \t]*```", _blank(text, [block.span for block in found]), re.MULTILINE):
        raise ValueError(f"the block at line {text.count(chr(10), 0, opened.start()) + 1} is never closed")
    return found


def _blank(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Spaces in place of what is there; lines stay where they are."""
    for start, stop in spans:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:stop]) + text[stop:]
    return text


def without_blocks(text: str) -> str:
    """The page with spaces for its fenced blocks and comments: every other character stays where it is."""
    text = _blank(text, [block.span for block in blocks(text)])
    return _blank(text, [comment.span() for comment in COMMENT.finditer(text)])


def without_code(text: str) -> str:
    """Without code spans, too."""
    text = without_blocks(text)
    return _blank(text, [span.span() for span in SPAN.finditer(text)])


def namespace() -> dict[str, Any]:
    """What a page's Python blocks may take for granted."""
    import torch
    from torch import nn

    import egalitarian

    torch.manual_seed(0)
    x, y = torch.randn(16, 12), torch.randint(4, (16,))
    return {
        "__name__": "__main__",
        "torch": torch,
        "nn": nn,
        "eg": egalitarian,
        "model": nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)),
        "x": x,
        "y": y,
        "loader": [(x, y)] * 3,
        "loss_fn": nn.CrossEntropyLoss(),
        "val_accuracy": 0.97,
    }


def python_blocks(text: str) -> list[Block]:
    """All Python of a page but its quick start and what another test executes, by name."""
    return [block for block in program(text) if block.language != "pycon" and block != quick_start(text)]


def program(text: str) -> list[Block]:
    """What runs as a page's one program, with sessions of an interpreter: all but what another test executes, by name."""
    return [block for block in blocks(text) if block.language in ("python", "py", "pycon") and ": " not in block.marked]


def quick_start(text: str) -> Block | None:
    """The first Python block, if it is a program on its own: it imports torch and makes its own model."""
    first = next((block for block in blocks(text) if block.language in ("python", "py")), None)
    if first is None or not first.code.startswith("import torch"):
        return None
    return first if re.search(r"^model\s*=", first.code, re.MULTILINE) else None


def execute(block: Block, page: Path, names: dict[str, Any]) -> None:
    """As if pasted; tracebacks have the page's own line numbers. A session must print what it shows."""
    if block.language == "pycon":
        session = doctest.DocTestParser().get_doctest(block.code, names, name_of(page), name_of(page), block.line - 1)
        doctest.DebugRunner(verbose=False).run(session, clear_globs=False)
        names.update(session.globs)
        return
    code = "\n" * (block.line - 1) + block.code
    exec(compile(code, name_of(page), "exec", dont_inherit=True), names)


# command lines


class Command(NamedTuple):
    """A line of a shell block, or a code span, that names a command."""

    words: tuple[str, ...]
    line: int
    inline: bool


def commands(text: str, program: str) -> list[Command]:
    """All that begin with the program's name, as a shell would split them, without comments, redirections and pipes."""
    return [*_in_blocks(text, program), *_in_spans(text, program)]


def _in_blocks(text: str, program: str) -> Iterator[Command]:
    for block in blocks(text):
        if block.language not in SHELL:
            continue
        whole, first = "", 0
        for number, line in enumerate(block.code.splitlines(), block.line):
            first = first if whole else number
            whole += line.strip().removeprefix("$ ")
            if whole.endswith("\\"):
                whole = whole.removesuffix("\\")
                continue
            if re.match(rf"{program}(?:\s|$)", whole):
                yield Command(split(whole), first, inline=False)
            whole = ""


def _in_spans(text: str, program: str) -> Iterator[Command]:
    text = without_blocks(text)
    for span in SPAN.finditer(text):
        code = " ".join(span[2].split())
        if re.match(rf"{program} +[\w-]", code):
            yield Command(split(code), text.count("\n", 0, span.start()) + 1, inline=True)


def split(line: str) -> tuple[str, ...]:
    """The words of the first command of a shell's line; the comment after it is none."""
    words = shlex.split(re.sub(r"(?:^|\s)#.*", "", line))
    ends = [place for place, word in enumerate(words) if word in OPERATORS]
    return tuple(words[: min(ends, default=len(words))])


# links


def links(text: str) -> list[str]:
    """Where a page's links and pictures lead; those inside code are none."""
    text = without_code(text)
    named = re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    return [*LINK.findall(text), *named, *re.findall(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"", text)]


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: small letters, no punctuation, hyphens for spaces, numbers for repeats."""
    text, found = without_blocks(text), dict[str, int]()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    numbered = {slug + (f"-{place}" if place else "") for slug, count in found.items() for place in range(count + 1)}
    return numbered | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


# prose


@dataclass(frozen=True)
class Prose:
    """What a page asks of its reader."""

    words: int
    numbers: int
    """A date is one, a range is two; those glued to a word (`H200`, `CIFAR-10`) and those in code are none."""
    sentence: float
    """The median of its sentences' lengths, in words. Headings are no sentences."""

    def __str__(self) -> str:
        return f"{self.words} words, {self.numbers} numbers, median sentence {self.sentence:g} words"


NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])(?<![A-Za-z_]-)(?:\d{4}-\d\d-\d\d|\d{1,3}(?: \d{3})+(?!\d)|\d+(?:[.,]\d+)*(?:e[-+]?\d+)?)"
)
SENTENCE = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z\d\"'(*\[`])")


def prose(page: Path) -> Prose:
    """Of a page, without code blocks, tables, comments, pictures and the targets of links. A code span is one word."""
    text = without_blocks(page.read_text(encoding="utf-8"))
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\[[^\]]+\]:.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"<[/a-zA-Z][^>]*>", " ", SPAN.sub("Code", text))
    paragraphs: list[str] = []
    headings: list[str] = []
    fresh = True
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("|") or re.fullmatch(r"[-*_]{3,}", line):
            fresh = True
        elif line.startswith("#"):
            headings.append(line.lstrip("#"))
            fresh = True
        else:
            item = re.sub(r"^(?:[-*+]|\d+[.)])\s+|^>\s*", "", line)
            if fresh or item != line:
                paragraphs.append("")
            paragraphs[-1] += f" {item}"
            fresh = False
    lengths = [len(_words(sentence)) for paragraph in paragraphs for sentence in SENTENCE.split(paragraph.strip())]
    said = " \n".join((*headings, *paragraphs))
    median = statistics.median(length for length in lengths if length) if any(lengths) else 0.0
    return Prose(len(_words(said)), len(NUMBER.findall(said)), median)


def _words(text: str) -> list[str]:
    """What has a letter or a digit in it."""
    return [word for word in text.split() if re.search(r"\w", word)]


if __name__ == "__main__":
    for asked in map(Path, sys.argv[1:] or map(str, PAGES)):
        print(f"{name_of(asked)}: {len(asked.read_text(encoding='utf-8').splitlines())} lines, {prose(asked)}")
