"""The notebook runs in a kernel of its own, and what is stored in it is what it prints."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "five_minutes.ipynb"


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


def pictures(notebook: Any) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.?\d*", text)]


@pytest.mark.timeout(900)
def test_it_runs_and_stores_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the kernel: more threads than idle cores are slow
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    ran = copy.deepcopy(stored)
    NotebookClient(ran, timeout=600).execute()
    assert pictures(ran) == pictures(stored) == 3
    before, after = printed(stored), printed(ran)
    assert re.sub(r"\d", "", after) == re.sub(r"\d", "", before)
    assert "2.weight  (97, 512)   left: output head" in after
    epochs, stored_epochs = numbers(after)[-1], numbers(before)[-1]
    assert abs(epochs - stored_epochs) <= 3, "other hardware may differ by a few epochs"


def test_it_names_no_folder_and_no_environment() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/(work|tmp|home|root)/|site-packages|stderr", text)
    assert nbformat.read(NOTEBOOK, as_version=4).metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
