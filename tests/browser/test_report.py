"""`egalitarian report --html` in a browser: from disk, offline, by keyboard, without scripts, printed, and under attack."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_records import write_run

from egalitarian.lab.analysis import Gathered, band, gather
from egalitarian.lab.report import Block, Table, write_report
from egalitarian.lab.report.charts.parts import rounded
from egalitarian.lab.report.html import LIMIT
from egalitarian.lab.runs import Store

Open = Callable[..., Any]
TITLE = "<script>window.hacked = 1</script></script> & \"quotes\" 'single' ζ $x_1$ `code` <b>bold</b>"
EXPERIMENTS = ["addition-97", "parity-3", "mnist", "cifar-shuffle-3"]
CURVES = "figure[data-chart='figure-1-addition']"


def fill(store: Store, folder: Path) -> list[str]:
    """Runs of every kind: passed, not passed, diverged, with values that are no numbers, of one seed, with other times."""
    for seed in range(8):
        write_run(store, "addition-97", "sgd", seed, 200 + 3 * seed)
        write_run(store, "addition-97", "egd", seed, 108 + 2 * seed, ms=5.0)
        write_run(store, "addition-97", "row-norm", seed, 150 + seed, hardware="another", together=1)
        write_run(store, "parity-3", "egd", seed, 40 + 50 * seed if seed < 5 else None, epochs=None if seed < 5 else 1500)
        write_run(store, "parity-3", "sgd", seed, 300)
    for seed in range(3):
        write_run(store, "mnist", "adamw", seed, 80 + seed)
        write_run(store, "mnist", "egd", seed, 7 + seed, epochs=100 if seed == 0 else None)
        write_run(store, "mnist", "egd-rsvd-16", seed, epochs=30, diverged=True)
        write_run(store, "cifar-shuffle-3", "adam", seed, learnt=lambda epoch: 0.3)
        write_run(store, "cifar-shuffle-3", "adam-egd", seed, learnt=lambda epoch: 0.6)
    mine = folder / "my files & more" / "mine.toml"
    mine.parent.mkdir()
    mine.write_text(f'extends = "addition-97"\ntitle = {json.dumps(TITLE)}\n[task]\nmodulus = 31\n', encoding="utf-8")
    write_run(store, str(mine), "egd", 0, 20)
    write_run(store, str(mine), "sgd", 0, epochs=30, diverged=True)
    return [*EXPERIMENTS, str(mine)]


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, list[str]]:
    folder = tmp_path_factory.mktemp("stored")
    store = Store(folder / "runs")
    return store, fill(store, folder)


@pytest.fixture(scope="session")
def gathered(filled: tuple[Store, list[str]]) -> Gathered:
    return gather(*filled)


@pytest.fixture(scope="session")
def page(filled: tuple[Store, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    store, asked = filled
    tuned = Table("tuned-x", "Tuned & <i>fairly</i>", "", ("method", "lr"), (Block("", (("EGD", "0.1"),)),), ("a",), ())
    report = write_report(store, folder / "out", asked, html=True, tuned=[tuned])
    assert report.errors == ()
    return folder / "out" / "index.html"


def ready(shown: Any) -> Any:
    shown.page.wait_for_selector("html.ready")
    return shown.page


def test_it_opens_from_disk_and_asks_for_nothing(opened: Open, page: Path, tmp_path: Path) -> None:
    alone = tmp_path / "moved.html"
    alone.write_bytes(page.read_bytes())
    asked: list[str] = []
    with opened("about:blank", offline=True) as shown:
        shown.page.on("request", lambda each: None if each.url.startswith("data:") else asked.append(each.url))
        shown.page.goto(alone.as_uri())
        ready(shown)
        shown.requests.clear()  # of the page itself, which is not about:blank
        assert asked == [alone.as_uri()]
        assert shown.page.locator("figure[data-chart]").count() == shown.page.locator(".chart").count() > 8
    assert len(page.read_bytes()) < LIMIT


@pytest.mark.parametrize("size", ["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_fits(opened: Open, page: Path, size: str, scheme: str, keep_screenshot: Any) -> None:
    with opened(page.as_uri(), size=size, scheme=scheme) as shown:
        ready(shown)
        keep_screenshot(shown.page, f"report-{size}-{scheme}")
        shown.page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
        assert shown.violations() == []
        assert not shown.scrolls_sideways()


def test_headings_are_in_order(opened: Open, page: Path) -> None:
    with opened(page.as_uri()) as shown:
        levels = ready(shown).locator("h1, h2, h3, h4, h5, h6").evaluate_all("all => all.map(each => +each.tagName[1])")
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(below <= above + 1 for above, below in pairwise(levels))


def test_the_keyboard_reaches_axes_methods_seeds_and_points(opened: Open, page: Path, gathered: Gathered) -> None:
    with opened(page.as_uri()) as shown:
        figure = ready(shown).locator(CURVES)
        keys = shown.page.keyboard
        label = figure.locator("svg text", has_text="epoch")
        assert label.inner_html() == "epoch (logarithmic)"
        figure.get_by_role("button", name="seeds that passed").focus()
        keys.press("Tab")  # Epochs
        keys.press("Tab")
        assert shown.page.evaluate("document.activeElement.textContent") == "Seconds"
        keys.press("Enter")
        assert figure.locator("svg text", has_text="seconds").inner_html() == "seconds (logarithmic)"
        keys.press("Tab")
        keys.press("Space")
        assert figure.locator("svg text", has_text="seconds").inner_html() == "seconds"
        assert figure.get_by_role("button", name="Logarithmic").get_attribute("aria-pressed") == "false"
        figure.get_by_role("button", name="Epochs").press("Enter")
        figure.get_by_role("checkbox", name="row norm").focus()
        before = figure.locator("path.median").count()
        keys.press("Space")
        assert figure.locator("path.median").count() == before - 1 == 2
        figure.locator("summary", has_text="Medians and seeds").press("Enter")
        figure.get_by_role("checkbox", name="seed 3").press("Space")
        assert figure.locator("path.seed").count() == 2
        figure.get_by_role("checkbox", name="seed 3").press("Space")
        # the first line is SGD's training accuracy, the second its test accuracy
        while shown.page.evaluate("!document.activeElement.classList.contains('plot')"):
            keys.press("Tab")
        tip = figure.locator(".tip").first
        assert tip.is_visible(), "on focus"
        keys.press("ArrowDown")
        assert "EGD" in tip.inner_text() or "SGD" in tip.inner_text()
        while "SGD\nmedian" not in tip.inner_text():
            keys.press("ArrowDown")
        keys.press("End")
        found = band(gathered, "addition-97", "sgd", "test_accuracy", hold=True)
        last = f"{100 * found.middle[found.known][-1]:.1f}".removesuffix(".0")
        assert f"epoch {found.epochs[found.known][-1]:.0f}" in tip.inner_text()
        assert f"{last} %" in tip.inner_text()
        assert f"{last} %" in shown.page.locator("#live").inner_text()
        keys.press("Escape")
        assert not tip.is_visible()
        ticks = figure.locator("svg text.tick").all_inner_texts()
        keys.press("+")
        assert figure.locator("svg text.tick").all_inner_texts() != ticks
        assert shown.page.evaluate("document.activeElement.classList.contains('plot')"), "zooming keeps the focus"
        keys.press("0")
        assert figure.locator("svg text.tick").all_inner_texts() == ticks


def test_a_mouse_enlarges_a_part_and_a_double_click_shows_all(opened: Open, page: Path) -> None:
    with opened(page.as_uri()) as shown:
        figure = ready(shown).locator(CURVES)
        figure.scroll_into_view_if_needed()
        svg = figure.locator("svg").first
        box, ticks = svg.bounding_box(), figure.locator("svg text.tick").all_inner_texts()
        mouse = shown.page.mouse
        mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 40)
        mouse.down()
        mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50, steps=4)
        mouse.up()
        assert figure.locator("svg text.tick").all_inner_texts() != ticks
        figure.locator("svg").first.dblclick(position={"x": 300, "y": 60})
        assert figure.locator("svg text.tick").all_inner_texts() == ticks


def test_the_numbers_of_a_line_are_those_of_analysis(opened: Open, page: Path, gathered: Gathered) -> None:
    with opened(page.as_uri()) as shown:
        data = json.loads(ready(shown).locator("#data").text_content())
    chart = data["figures"]["figure-1-addition"]
    place = [method["title"] for method in chart["methods"]].index("EGD")
    (line,) = [each for each in chart["panels"][0]["lines"] if each["m"] == place and each["r"] == "median"]
    found = band(gathered, "addition-97", "egd", "test_accuracy", hold=True)
    values = dict(zip(found.epochs, found.middle, strict=True))
    shown_values = dict(zip(data["arrays"][line["x"]], data["arrays"][line["y"]], strict=True))
    assert len(shown_values) > 50
    assert {epoch: value for epoch, value in shown_values.items() if value != rounded(values[epoch])} == {}


def test_the_reason_of_a_verdict_shows_on_focus_and_on_hover(opened: Open, page: Path) -> None:
    with opened(page.as_uri()) as shown:
        button = ready(shown).locator("#table-table-2-addition ~ .wide button.why").nth(0)
        button.focus()
        tip = shown.page.locator("#reason")
        assert "epochs: the paper has 5392" in tip.inner_text()
        assert tip.is_visible()
        shown.page.keyboard.press("Escape")
        assert not tip.is_visible()
        shown.page.keyboard.press("Tab")
        assert "the paper has 116, we have 115 (108–122). inside the spread." in tip.inner_text()
        shown.page.locator("h1").focus()
        shown.page.locator("button.why").nth(0).hover()
        assert tip.is_visible()


def test_a_command_is_copied(opened: Open, page: Path) -> None:
    with opened(page.as_uri()) as shown:
        button = ready(shown).get_by_role("button", name="Copy the command: the whole report")
        button.click()
        shown.page.wait_for_selector("button.copy:has-text('Copied'), button.copy:has-text('Selected')")
        text = button.locator("xpath=..").locator("code").inner_text()
        assert text.startswith("egalitarian report addition-97 parity-3 mnist cifar-shuffle-3 '")
        assert text.endswith("/my files & more/mine.toml' --html")


def test_without_scripts_it_has_pictures_tables_and_errata(opened: Open, page: Path, keep_screenshot: Any) -> None:
    with opened(page.as_uri(), scripts=False) as shown:
        assert shown.page.locator(".findings li").count() == 3
        assert shown.page.locator("img.static").count() == shown.page.locator("figure[data-chart]").count()
        assert shown.page.locator("img.static").first.is_visible()
        assert shown.page.locator("button.copy").first.is_hidden()
        assert "the paper has" in (shown.page.locator("button.why").first.get_attribute("title") or "")
        assert shown.page.locator("#errata-one-run-per-cell").is_visible()
        keep_screenshot(shown.page, "report-without-scripts")


def test_print_shows_the_pictures(opened: Open, page: Path, keep_screenshot: Any) -> None:
    with opened(page.as_uri(), scheme="dark") as shown:
        ready(shown)
        shown.page.emulate_media(media="print")
        assert shown.page.locator("img.static").first.is_visible()
        assert not shown.page.locator(".chart").first.is_visible()
        assert not shown.page.locator("button.copy").first.is_visible()
        colour = shown.page.evaluate("getComputedStyle(document.body).color")
        assert colour == "rgb(0, 0, 0)", "also from a dark screen"
        keep_screenshot(shown.page, "report-print")


def test_titles_are_text_wherever_they_are(opened: Open, page: Path) -> None:
    with opened(page.as_uri()) as shown:
        ready(shown)
        assert shown.page.evaluate("window.hacked") is None
        assert shown.page.locator("b, i").count() == 0
        assert shown.page.get_by_text("<script>window.hacked = 1</script></script>").count() > 5
        assert shown.page.locator("script").count() == 2


def test_a_link_of_a_verdict_goes_to_the_errata(opened: Open, page: Path) -> None:
    with opened(page.as_uri()) as shown:
        targets = (
            ready(shown).locator("a[href^='#']").evaluate_all("all => all.map(each => each.getAttribute('href').slice(1))")
        )
        missing = [each for each in set(targets) if shown.page.locator(f"[id='{each}']").count() != 1]
        assert missing == []
        assert any(each.startswith("errata-") for each in targets)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_runs_it_says_what_is_missing(opened: Open, tmp_path: Path, scheme: str, keep_screenshot: Any) -> None:
    write_report(Store(tmp_path / "runs"), tmp_path / "out", html=True)
    with opened((tmp_path / "out" / "index.html").as_uri(), scheme=scheme, size="narrow") as shown:
        ready(shown)
        text = shown.page.locator("main").inner_text()
        assert "From 0 stored runs." in shown.page.locator("header").inner_text()
        assert "egalitarian run --all" in text
        assert "egalitarian run addition-79 addition-97 addition-127" in text
        assert shown.violations() == []
        assert not shown.scrolls_sideways()
        keep_screenshot(shown.page, f"report-empty-{scheme}")
