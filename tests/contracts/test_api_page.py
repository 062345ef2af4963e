"""The page of public names says what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import egalitarian


def maker() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_api", Path(__file__).parents[2] / "docs" / "make_api.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_public_name_has_its_place() -> None:
    listed = [name for names in maker().CHAPTERS.values() for name in names]
    assert sorted(listed) == sorted(egalitarian.__all__)


def test_every_public_name_of_a_trainer_has_its_place() -> None:
    folder = Path(egalitarian.__file__).parent / "integrations"
    files = [file for file in folder.glob("*.py") if file.stem not in ("__init__", "settings")]
    found = {
        name: file.stem for file in files for name in re.findall(r"^(?:class|def) ([A-Za-z]\w*)", file.read_text(), re.M)
    }
    assert found == maker().TRAINERS
    assert "    plan: Plans | Callable[[Any], Plans] | None = None,\n    *,\n    monitor: str" in maker().page()


def test_the_page_is_what_the_code_says() -> None:
    made = maker()
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run `make api`"


def test_the_page_says_all_of_it() -> None:
    """Whatever the layout: arguments, their words and the examples are there, once each in its own place."""
    page = maker().page()
    assert "- `decay_before`: weight decay added to the gradients of the plan's matrices *before*" in page
    assert page.count("**`.observe(metric: float | Tensor | Sequence[float]) -> bool | Tensor`**") == 1
    assert "    transform: Transform | Sequence[Transform] = Polar(),\n" in page
    assert ">>> polar(torch.tensor([[3.0, 0.0], [0.0, 0.01]]))\ntensor([[1., 0.],\n        [0., 1.]])\n```" in page
    headings = re.findall(r"^### (\w+)$", page, re.M)
    anchors = re.findall(r"\]\(#([\w-]+)\)", page)
    assert len(headings) == len(set(anchors)), "each has an anchor of its own, and is linked"
