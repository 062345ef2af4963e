"""The browser itself: the fixtures see errors, requests and violations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]


def page(folder: Path, body: str) -> str:
    file = folder / "page.html"
    file.write_text(f"<!doctype html><html lang=en><title>t</title><main>{body}</main></html>", encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("size", ["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_good_page_passes(opened: Open, tmp_path: Path, size: str, scheme: str) -> None:
    with opened(page(tmp_path, "<h1>good</h1>"), size=size, scheme=scheme) as shown:
        assert shown.violations() == []
        assert not shown.scrolls_sideways()
        assert shown.page.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")


def test_an_error_of_a_script_fails(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(AssertionError), opened(page(tmp_path, "<h1>x</h1><script>nothing()</script>")):
        pass


def test_a_request_of_another_host_fails(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(AssertionError), opened(page(tmp_path, "<h1>x</h1><img alt=x src='http://example.invalid/x.png'>")):
        pass


def test_a_violation_is_found(opened: Open, tmp_path: Path) -> None:
    with opened(page(tmp_path, "<h1>x</h1><button></button>")) as shown:
        assert any(found.startswith("button-name") for found in shown.violations())


def test_a_page_that_is_too_wide_is_seen(opened: Open, tmp_path: Path) -> None:
    with opened(page(tmp_path, "<h1>x</h1><div style='width:900px'>wide</div>"), size="narrow") as shown:
        assert shown.scrolls_sideways()
