"""Tests in a real browser: `make test-browser`. Pages may not reach the network; an error on a page's console fails."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("playwright", "axe_playwright_python", "nicegui", "zensical")
ARGUMENTS = [
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PART = 2400
"""Pixels: the height of a screenshot."""
SIZES = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 400, "height": 800}}


def pytest_sessionstart(session: pytest.Session) -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if shutil.which("chromium") is None:
        missing.append("chromium")
    if missing:
        raise pytest.UsageError(f"these tests need {', '.join(missing)}; run them with `make test-browser`")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and what it asked of the network and said on its console."""

    page: Any
    requests: list[str] = field(default_factory=list)
    """Of other hosts than the page's own; none may be made."""
    errors: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """What axe finds serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def scrolls_sideways(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@pytest.fixture
def opened(chromium: Any) -> Callable[..., Any]:
    """`with opened(address, size="narrow", scheme="dark") as shown:` fails at its end if the page erred or went out."""

    @contextmanager
    def open_page(
        address: str, *, size: str = "wide", scheme: str = "light", offline: bool = False, scripts: bool = True
    ) -> Iterator[Opened]:
        context = chromium.new_context(
            viewport=SIZES[size], color_scheme=scheme, reduced_motion="no-preference", java_script_enabled=scripts
        )
        context.set_default_timeout(20_000)
        if offline:
            context.set_offline(True)
        shown = Opened(context.new_page())
        own = tuple(address.split("/")[:3])
        shown.page.on("request", lambda each: shown.requests.append(each.url) if _leaves(each.url, own) else None)
        shown.page.on("console", lambda each: shown.errors.append(each.text) if each.type == "error" else None)
        shown.page.on("pageerror", lambda each: shown.errors.append(str(each)))
        try:
            shown.page.goto(address)
            yield shown
            assert shown.requests == []
            assert shown.errors == []
        finally:
            context.close()

    return open_page


def _leaves(url: str, own: tuple[str, ...]) -> bool:
    return not url.startswith(("data:", "blob:", "about:")) and tuple(url.replace("ws", "http", 1).split("/")[:3]) != own


@pytest.fixture
def keep_screenshot(request: pytest.FixtureRequest) -> Callable[[Any, str], None]:
    """Writes screenshots into the folder EGALITARIAN_SCREENSHOTS, if that is set: they are to be looked at.

    A page that is higher than a browser can draw at once gets several, with numbers behind their name.
    """

    def keep(page: Any, name: str) -> None:
        if not (folder := os.environ.get("EGALITARIAN_SCREENSHOTS")):
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        height = page.evaluate("document.documentElement.scrollHeight")
        if height <= PART:
            page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
            return
        size = page.viewport_size
        page.set_viewport_size({**size, "height": PART})
        for part, top in enumerate(range(0, height, PART)):
            page.evaluate(f"scrollTo(0, {top})")
            page.screenshot(path=str(Path(folder) / f"{name}-{part}.png"))
        page.evaluate("scrollTo(0, 0)")
        page.set_viewport_size(size)

    return keep
