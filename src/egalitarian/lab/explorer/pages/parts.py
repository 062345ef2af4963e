"""What both pages are made of: the frame around them, and charts that follow the system's colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

from nicegui import html, ui
from nicegui.elements.mixins.text_element import TextElement

from egalitarian.lab.explorer.charts import DARK, LIGHT, Ink, Options

PAGES = {"": "Train", "toy": "Toy problem"}
"""By address."""
SCHEME = """<script>
const scheme = matchMedia("(prefers-color-scheme: dark)");
scheme.addEventListener("change", () => emitEvent("scheme", scheme.matches));
</script>"""
TELL = 'emitEvent("scheme", scheme.matches)'


def add_looks() -> None:
    """Styles and scripts of every page."""
    ui.add_css((resources.files("egalitarian.lab.explorer.pages") / "page.css").read_text(encoding="utf-8"), shared=True)
    ui.add_head_html(SCHEME, shared=True)


def text(tag: str, content: str = "") -> Any:
    """An element with a text that `set_text` changes."""
    return TextElement(tag=tag, text=content)


@contextmanager
def frame(current: str) -> Iterator[None]:
    """The page's head, and what is below."""
    with html.header().classes("top"):
        text("h1", "egalitarian explore")
        with html.nav().props('aria-label="Pages"'):
            for address, title in PAGES.items():
                link = ui.link(title, f"./{address}")
                if address == current:
                    link.props("aria-current=page")
    with html.div():
        yield


class ChartCard:
    """A chart with a heading and a line on what to look for."""

    def __init__(self, title: str, look_for: str, options: Callable[[Ink], Options], *, tall: bool = False) -> None:
        self._options = options
        with html.section().classes("panel") as self.panel:
            text("h2", title)
            text("p", look_for).classes("soft")
            self.chart: Any = ui.echart(options(LIGHT)).classes("chart tall" if tall else "chart")

    def redraw(self, ink: Ink) -> None:
        """As if it were new: lines may have come or gone."""
        self.chart.options.clear()
        self.chart.options.update(self._options(ink))
        self.chart.update()

    def push(self, options: Options) -> None:
        """Sends these options alone; everything else stays as it is."""
        self.chart.run_chart_method("setOption", options)


class Inks:
    """The ink of the system's colours on one page, and who redraws when they change."""

    def __init__(self, redraw: Callable[[], None]) -> None:
        self.now, self._redraw = LIGHT, redraw
        ui.on("scheme", lambda event: self._set(bool(event.args)))
        ui.run_javascript(TELL)  # as soon as the browser is there

    def _set(self, dark: bool) -> None:
        self.now = DARK if dark else LIGHT
        self._redraw()
