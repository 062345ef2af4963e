"""The pages of the documentation site: complete, listed once, and the animation's data as recorded by its script."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from documents import ROOT, execute, namespace, program
from PIL import Image

DOCS = ROOT / "docs"


def maker(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


SITE, ANIMATION = maker("make_site"), maker("make_animation")
RECORDING: dict[str, Any] = json.loads(ANIMATION.RECORDING.read_text(encoding="utf-8"))

# pages


def test_every_page_is_in_the_navigation_once() -> None:
    shown = SITE.navigation()
    assert len(shown) == len(set(shown))
    assert set(DOCS.glob("*.md")) <= set(shown)
    assert {ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")} <= set(shown)
    assert all(page.exists() for page in shown)


def test_what_a_page_links_comes_along() -> None:
    found = SITE.reached(SITE.navigation())
    assert {ANIMATION.GIF, ANIMATION.PICTURE, ANIMATION.RECORDING, ROOT / "CITATION.cff"} <= found
    assert ROOT / "benchmarks" / "results" / "noise_amd-epyc_2026-11-15.md" in found


def test_anchors_are_those_of_a_repository_s_page() -> None:
    text = "# One `x`\n\n## egd\n\n```\n## EGD\n```\n\n## EGD\n\n### EGD\n"
    assert SITE.with_anchors(text) == "# One `x`\n\n## egd\n\n```\n## EGD\n```\n\n## EGD { #egd-1 }\n\n### EGD { #egd-2 }\n"


def test_a_report_next_to_a_readme_has_another_name_on_the_site() -> None:
    page = ROOT / "results" / "README.md"
    assert SITE.with_reports("[a](index.html), [b](toy/index.html)", page) == "[a](report.html), [b](toy/index.html)"
    assert SITE.with_reports("[a](../results/index.html#x)", DOCS / "api.md") == "[a](../results/report.html#x)"


def test_a_link_whose_text_is_a_file_s_name_has_the_page_s_title() -> None:
    text = "in [settings.md](settings.md#how-to-search), [ours](settings.md) and `[settings.md](settings.md)`"
    titled = SITE.with_titles(text, DOCS / "api.md")
    assert titled == "in [Choose settings](settings.md#how-to-search), [ours](settings.md) and `[settings.md](settings.md)`"


@pytest.mark.parametrize("page", SITE.navigation(), ids=lambda page: page.name)
def test_lists_are_lists_on_the_site_too(page: Path) -> None:
    """They begin after a blank line, and a list in a list is indented by four. A repository's web page needs neither."""
    text = SITE.FENCE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, re.MULTILINE) == []
    assert re.findall(r"^(?!\s*(?:[-*]|\d+\.) |\s*$|\s{2,}|#|\|).+\n(?:[-*]|1\.) .*", text, re.MULTILINE) == []


def test_every_public_name_has_an_example_and_types() -> None:
    sections = re.split(r"^### (\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    names = dict(zip(sections[::2], sections[1::2], strict=True))
    assert len(names) > 20
    assert [name for name, section in names.items() if ">>> " not in section] == []
    untyped = [name for name, section in names.items() if not re.search(r"^```python\n\w+\(|\*\*`\.\w+.*`", section, re.M)]
    assert untyped == []


# what pages claim


def test_the_start_page_s_network_groks_with_egd_and_not_without() -> None:
    """Training accuracy first, then test accuracy; without EGD, as the page says, nothing of the kind."""
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    accuracies = {}
    for egd in (True, False):
        names, told = namespace(), io.StringIO()
        with redirect_stdout(told):
            for block in program(text if egd else text.replace("egd = eg.attach(optimizer, plan)", "")):
                execute(block, DOCS / "start.md", names)
        found = re.findall(r"train +([\d.]+)% +test +([\d.]+)%", told.getvalue())
        accuracies[egd] = [(float(train), float(test)) for train, test in found]
    assert accuracies[True][-1] > (99, 99)
    assert any(train > 90 and test < 60 for train, test in accuracies[True])
    assert max(test for _, test in accuracies[False]) < 60


# the animation


def test_the_recording_says_how_it_was_made() -> None:
    assert RECORDING["made"]["script"] == "docs/make_animation.py"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", RECORDING["made"]["date"])
    settings = {"experiment": ANIMATION.EXPERIMENT, "seed": ANIMATION.SEED, "methods": ANIMATION.METHODS}
    assert RECORDING["settings"] == {**settings, "directions": 193, "every": ANIMATION.EVERY}
    assert len(RECORDING["egd"]) == len(RECORDING["plain"]) == ANIMATION.EPOCHS
    assert [frame["epoch"] for frame in RECORDING["frames"]] == list(ANIMATION.SHOWN)
    assert ANIMATION.RECORDING.stat().st_size < 50_000


def test_the_recording_shows_what_the_page_says() -> None:
    """EGD makes all kept directions one; with it test accuracy follows training accuracy, without it much later."""
    for frame in RECORDING["frames"]:
        assert all(abs(value - 1) < 1e-3 or value < 1e-3 for value in frame["after"])
        assert frame["before"] == sorted(frame["before"], reverse=True)

    def passed(name: str, place: int) -> int:
        return next(epoch for epoch, each in enumerate(RECORDING[name]) if each[place] > 0.95)

    assert passed("egd", 0) < passed("egd", 1) < passed("plain", 0) < passed("plain", 1)
    assert passed("plain", 1) - passed("plain", 0) > 5 * (passed("egd", 1) - passed("egd", 0))


def test_the_gif_shows_the_recording() -> None:
    """Small enough for the README; it plays twice and then rests on the last epoch."""
    with Image.open(ANIMATION.GIF) as stored:
        assert stored.n_frames == len(RECORDING["frames"]) + 6
        assert stored.info["loop"] == 1
        stored.seek(stored.n_frames - 1)
        last = np.asarray(stored.convert("RGB"), dtype=int)
    assert ANIMATION.GIF.stat().st_size < 2_000_000
    again = np.asarray(ANIMATION.frame(RECORDING, len(RECORDING["frames"]) - 1, 1.0), dtype=int)
    assert np.abs(last - again).mean() < 3, "docs/make_animation.py --draw draws it"


def test_the_readme_says_how_much_stronger_the_strongest_direction_is() -> None:
    before = RECORDING["frames"][0]["before"]
    assert f"is {before[0] / before[-1]:.0f} times the weakest" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_script_still_records_that() -> None:
    """The first epochs, trained again; later ones differ between machines."""
    torch.manual_seed(1)
    again = ANIMATION.record(2)
    assert again["frames"][0]["before"] == pytest.approx(RECORDING["frames"][0]["before"], rel=0.02)
    for name in ("egd", "plain"):
        for new, old in zip(again[name], RECORDING[name], strict=False):
            assert new == pytest.approx(old, abs=0.01)


def test_the_picture_is_drawn_of_the_recording() -> None:
    figure = ANIMATION.draw(RECORDING)
    assert [axis.get_title() for axis in figure.axes] == ["singular values", "accuracy"]
