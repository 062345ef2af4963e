"""Builds the documentation site into site/ (`make docs`): the pages that mkdocs.yml names, and every file they lead to.

build/pages is laid out as the repository is. So a link leads to the same file there, in a checkout and on the repository's
web page, and nothing is rewritten but this:

- a heading that repeats gets the anchor which a repository's web page gives it;
- a link whose text is a file's name, as in [api.md](api.md), gets the title of that page;
- a report index.html next to a README.md becomes report.html, since README.md is that folder's index.html on the site;
- a page outside the navigation is left out of the search;
- a folder that a page links gets a page that lists its files.

A warning of zensical is an error. It checks links between pages; tests/browser/test_site.py checks all others.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "mkdocs.yml"
PAGES = ROOT / "build" / "pages"
"""What zensical reads: `docs_dir` in mkdocs.yml."""
FENCE = re.compile(r"^[ \t]*(`{3,}).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>#]+)[^)]*\)|\b(?:href|src)=\"([^\"#]+)")
NAMED = re.compile(r"(?<!`)\[([\w-]+\.md)\]\(([\w./-]+\.md)(#[\w-]+)?\)")
REPORT = re.compile(r"\]\(([\w./-]*)\bindex\.html")
HEADING = re.compile(r"^(#{1,6} +)(.*)$", re.MULTILINE)


def navigation() -> list[Path]:
    """The pages of mkdocs.yml, in its order."""
    text = CONFIG.read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    return [ROOT / name for name in re.findall(r"[\w./-]+\.md\b", text)]


def reached(start: list[Path]) -> set[Path]:
    """These pages, and the files and folders that they, and the pages among those, lead to."""
    found: set[Path] = set()
    waiting = list(start)
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        waiting += targets(file) if file.suffix == ".md" else sorted(file.iterdir()) if file.is_dir() else []
    return found


def targets(page: Path) -> Iterator[Path]:
    """Where a page's links lead within the repository. What is not there is left to the checks of the built site."""
    for link in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / (link[1] or link[2])).resolve()
        if "//" not in link[0] and target.exists() and target.is_relative_to(ROOT):
            yield target


def slug(heading: str) -> str:
    """A heading's anchor, as on a repository's web page: small letters, no punctuation, hyphens for spaces."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")


def with_anchors(text: str) -> str:
    """A heading that repeats is numbered, from the second on."""
    blocks = [match.span() for match in FENCE.finditer(text)]
    seen: dict[str, int] = {}

    def anchored(heading: re.Match[str]) -> str:
        if any(start <= heading.start() < stop for start, stop in blocks):
            return heading[0]
        name = slug(heading[2])
        seen[name] = seen.get(name, -1) + 1
        return heading[0] + (f" {{ #{name}-{seen[name]} }}" if seen[name] else "")

    return HEADING.sub(anchored, text)


def titles() -> dict[Path, str]:
    """What mkdocs.yml calls the pages."""
    return {
        ROOT / name: title for title, name in re.findall(r"^ *- (.+): ([\w./-]+\.md)$", CONFIG.read_text(), re.MULTILINE)
    }


def with_titles(text: str, page: Path) -> str:
    names = titles()

    def titled(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        return f"[{names[target]}]({link[2]}{link[3] or ''})" if target in names and target.name == link[1] else link[0]

    return NAMED.sub(titled, text)


def is_report(file: Path) -> bool:
    return file.name == "index.html" and file.with_name("README.md").exists()


def with_reports(text: str, page: Path) -> str:
    """Links to a report lead to its name on the site."""

    def led(link: re.Match[str]) -> str:
        return f"]({link[1]}report.html" if is_report((page.parent / f"{link[1]}index.html").resolve()) else link[0]

    return REPORT.sub(led, text)


def listing(folder: Path) -> str:
    names = sorted(file.name for file in folder.iterdir())
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *(f"- [{name}]({name})" for name in names), ""])


def gather() -> None:
    """Fills build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shown = navigation()
    for source in sorted({*reached(shown), *(ROOT / "docs" / "assets").iterdir()}):
        copy = PAGES / source.relative_to(ROOT)
        copy = copy.with_name("report.html") if is_report(source) else copy
        if source.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
            if not (source / "README.md").exists():
                (copy / "index.md").write_text(searched(listing(source), False), encoding="utf-8")
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = with_reports(with_titles(with_anchors(source.read_text(encoding="utf-8")), source), source)
            copy.write_text(searched(text, source in shown), encoding="utf-8")
        else:
            shutil.copyfile(source, copy)


def searched(text: str, found: bool) -> str:
    return text if found else f"---\nsearch:\n  exclude: true\n---\n{text}"


def main() -> None:
    gather()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(CONFIG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr).partition("Traceback")[0]
    if done.returncode or "Warning" in said:
        raise SystemExit(f"{said}\nthe site must be built without a warning; mend the pages above")
    print("site/index.html is built; to read it: python -m http.server --directory site --bind 127.0.0.1")


if __name__ == "__main__":
    main()
