"""The documentation site, built and read: whole, of its own files alone, legible in each size and scheme, animated."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
Open = Callable[..., Any]


@functools.cache
def maker() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def address_of(page: Path) -> str:
    """Where a page is on the site: its path within the repository."""
    return re.sub(r"(README)?\.md$", lambda found: "index.html" if found[1] else ".html", page.as_posix())


PAGES = [address_of(page.relative_to(ROOT)) for page in maker().navigation()]
MAIN = ["index.html", "docs/start.html", "docs/why.html", "docs/settings.html", "docs/recipes.html"]
"""Those whose screenshots are kept in each size and scheme."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Built as by `make docs`, and served."""
    maker().main()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


# as files


class Read(HTMLParser):
    """What a page of the site refers to, and what in it may be referred to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.headings: list[int] = []
        self.language = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        self.links += [value for key in ("href", "src", "srcset", "data") if (value := given.get(key))]
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "html":
            self.language = given.get("lang") or ""


@pytest.fixture(scope="module")
def read(site: str) -> dict[str, Read]:
    """Every page that was Markdown. A report in HTML has tests of its own."""
    names = [address_of(page.relative_to(maker().PAGES)) for page in maker().PAGES.rglob("*.md")]
    return {name: Read(SITE / name) for name in names}


def test_each_page_of_the_navigation_is_there(read: dict[str, Read]) -> None:
    assert set(PAGES) <= set(read)
    assert len(PAGES) > 30


def test_every_internal_link_and_anchor_resolves(read: dict[str, Read]) -> None:
    wrong = []
    for name, page in read.items():
        for link in page.links:
            parts = urlsplit(urljoin(name, link))
            if parts.scheme or parts.netloc:
                continue
            target = unquote(parts.path).lstrip("/") or name
            target = f"{target.rstrip('/')}/index.html" if (SITE / target).is_dir() else target
            anchor = unquote(parts.fragment)
            if not (SITE / target).is_file():
                wrong.append(f"{name}: {link}: no such file")
            elif anchor and target in read and anchor not in read[target].anchors:
                wrong.append(f"{name}: {link}: no such anchor")
    assert wrong == []


def test_no_page_has_anything_from_another_host(read: dict[str, Read]) -> None:
    """What a browser would fetch by itself; links that a reader follows may lead anywhere."""
    text = "\n".join((SITE / name).read_text(encoding="utf-8") for name in read)
    fetched = re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=[\"']?((?:https?:)?//[^\"' >]+)", text)
    assert fetched == []


def test_headings_are_in_order_and_pages_name_their_language(read: dict[str, Read]) -> None:
    for name in PAGES:
        assert read[name].language == "en", name
        levels = read[name].headings
        assert levels.count(1) == 1, name
        assert all(below - above <= 1 for above, below in pairwise(levels)), (name, levels)


@pytest.mark.parametrize("broken", ["[a](b.md)", "[a](#nowhere)", "[a](index.md#nowhere)"])
def test_a_broken_link_fails_the_build(tmp_path: Path, broken: str) -> None:
    """By zensical's own check, in the settings of mkdocs.yml."""
    settings = maker().CONFIG.read_text(encoding="utf-8").partition("\nnav:\n")[0].replace("build/pages", "pages")
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "pages").mkdir()
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    for text, works in (("# Here\n\n[a](#here)\n", True), (f"# Here\n\n{broken}\n", False)):
        (tmp_path / "pages" / "index.md").write_text(text, encoding="utf-8")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == works, done.stdout + done.stderr


# in a browser


WHY = "docs/why.html"
HUGE = ("results/index.html",)
"""Too long for a screenshot."""
LOOKS = {"light": "default", "dark": "slate"}


def check(shown: Any, name: str) -> None:
    """In whatever size and scheme the page is at the moment."""
    if name == WHY:
        shown.page.wait_for_selector(".eq")
    assert not shown.scrolls_sideways(), name
    assert shown.violations() == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_legible(opened: Open, site: str, keep_screenshot: Callable[[Any, str], None], name: str) -> None:
    """Wide and light, then narrow and dark; the main pages in the other two as well."""
    others = [("wide", "dark"), ("narrow", "light")] if name in MAIN else []
    for size, scheme in [("wide", "light"), ("narrow", "dark"), *others]:
        with opened(site + name, size=size, scheme=scheme) as shown:
            assert shown.page.evaluate("document.body.dataset.mdColorScheme") == LOOKS[scheme]
            check(shown, name)
            if name not in HUGE:
                keep_screenshot(shown.page, f"{name.replace('/', '-')}-{size}-{scheme}")


def test_pages_outside_the_navigation_fit_a_narrow_screen(opened: Open, site: str, read: dict[str, Read]) -> None:
    for name in sorted(set(read) - set(PAGES)):
        with opened(site + name, size="narrow") as shown:
            assert not shown.scrolls_sideways(), name


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_search_finds_momentum(opened: Open, site: str, size: str) -> None:
    with opened(site, size=size) as shown:
        box = shown.page.get_by_role("combobox", name="Search")
        for _ in range(40):  # until the script of the search has come
            shown.page.keyboard.press("/")
            shown.page.wait_for_timeout(250)
            if box.is_visible():
                break
        box.fill("momentum")
        found = shown.page.locator("a[href*='api.html'][href*='momentum']").first
        found.wait_for()
        if os.environ.get("EGALITARIAN_SCREENSHOTS"):
            shown.page.screenshot(path=str(Path(os.environ["EGALITARIAN_SCREENSHOTS"]) / f"search-{size}.png"))
        found.click()
        shown.page.wait_for_url("**/docs/api.html*")


def tab_to(page: Any, what: str) -> None:
    """By the keyboard alone: to the element of which a script says so; its focus can be seen."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate(f"(each => {what})(document.activeElement)"):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    pytest.fail(f"Tab never reaches {what}")


def test_the_keyboard_opens_the_navigation_of_a_narrow_screen(opened: Open, site: str) -> None:
    with opened(site + "docs/start.html", size="narrow") as shown:
        tab_to(shown.page, "each.getAttribute('aria-label') === 'Navigation'")
        for key, is_open in (("Enter", True), ("Space", False), ("Enter", True)):
            shown.page.keyboard.press(key)
            assert shown.page.is_checked("#__drawer") == is_open
        tab_to(shown.page, "each.href && each.href.endsWith('why.html')")
        shown.page.keyboard.press("Enter")
        shown.page.wait_for_url("**/docs/why.html")


def test_code_has_a_copy_button(opened: Open, site: str) -> None:
    with opened(site + "docs/start.html") as shown:
        blocks = shown.page.locator("pre > code").count()
        assert blocks > 5
        assert shown.page.locator("button[data-md-type=copy], .md-code__button, .md-clipboard").count() >= blocks


# the animation

RECORDING = json.loads((ROOT / "docs" / "equalising.json").read_text(encoding="utf-8"))
FRAMES = RECORDING["frames"]


def state(page: Any) -> str:
    return str(page.inner_text(".eq-status"))


def press(page: Any, button: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()


def heights(page: Any, kind: str) -> list[float]:
    """Of the bars, in units of the axis, once they have come to rest."""
    page.wait_for_timeout(450)
    full = page.evaluate("Number(document.querySelector('.eq rect').getAttribute('height'))")
    scale = page.evaluate("document.querySelector('.eq svg').getBoundingClientRect().width / 360")
    found = page.eval_on_selector_all(f".eq rect.{kind}", "all => all.map(each => each.getBoundingClientRect().height)")
    return [height / scale / full for height in found]


def test_the_animation_steps_by_mouse(opened: Open, site: str) -> None:
    with opened(site + WHY) as shown:
        page = shown.page
        page.wait_for_selector(".eq")
        first = FRAMES[0]
        assert state(page).startswith("Epoch 0. The gradient's strongest direction")
        relative = [value / first["before"][0] for value in first["before"]]
        assert heights(page, "eq-before") == pytest.approx(relative, abs=0.01)
        press(page, "Step")
        assert state(page).startswith("Epoch 0. EGD makes all directions equally strong")
        assert heights(page, "eq-after") == pytest.approx(first["after"], abs=0.01)
        press(page, "Step")
        assert state(page).startswith("Epoch 1.")
        press(page, "Back")
        press(page, "Reset")
        assert state(page).startswith("Epoch 0. The gradient's")
        training, test = RECORDING["egd"][0]
        assert f"With EGD: training {training:.1%}, test {test:.1%}".replace("%", "\u00a0%") in state(page)


def test_the_animation_steps_by_keyboard_alone(opened: Open, site: str) -> None:
    with opened(site + WHY) as shown:
        page = shown.page
        page.wait_for_selector(".eq")
        tab_to(page, "each.textContent === 'Play'")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert state(page).startswith("Epoch 1.")
        page.keyboard.press("ArrowLeft")
        assert state(page).startswith("Epoch 0. EGD")
        page.keyboard.press("Home")
        assert state(page).startswith("Epoch 0. The gradient's")
        page.focus(".eq input")
        page.keyboard.press("End")
        assert state(page).startswith(f"Epoch {FRAMES[-1]['epoch']}. EGD")


def test_the_animation_plays_when_it_is_asked_to_and_pauses(opened: Open, site: str) -> None:
    with opened(site + WHY) as shown:
        page = shown.page
        page.wait_for_selector(".eq")
        page.wait_for_timeout(1000)
        assert state(page).startswith("Epoch 0. The gradient's")  # not by itself
        press(page, "Play")
        page.wait_for_function("document.querySelector('.eq-status').textContent.startsWith('Epoch 2.')")
        press(page, "Pause")
        stopped = state(page)
        page.wait_for_timeout(1000)
        assert state(page) == stopped


def test_the_animation_holds_still_for_those_who_ask(chromium: Any, site: str) -> None:
    page = chromium.new_page(reduced_motion="reduce")
    page.goto(site + WHY)
    page.wait_for_selector(".eq")
    assert page.evaluate("getComputedStyle(document.querySelector('.eq rect')).transitionDuration") == "0s"
    page.close()


def test_without_scripts_the_picture_stays(chromium: Any, site: str) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site + WHY)
    assert page.locator("img[src$='equalising.png']").is_visible()
    context.close()
