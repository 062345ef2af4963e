"""The lab's imports follow the house: an experiment's day goes one way, and the report never trains."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parent.parent.parent / "src" / "egalitarian" / "lab"
ROOMS: dict[str, set[str]] = {
    "__init__": set(),
    "renamed": set(),
    "settings": {"renamed"},
    "spec": {"renamed", "settings"},
    "textplot": set(),
    "help_layout": set(),
    "durations": {"settings"},
    "choices": {"settings"},
    "environment": set(),
    "jobs": {"environment"},
    "order": {"progress", "spec", "store", "sweep"},
    "catalog": {"models", "renamed", "settings", "spec", "tasks"},
    "methods": {"settings", "spec"},
    "measure": {"tasks"},
    "ensemble": {"measure", "models", "settings", "spec", "tasks"},
    "steps": {"ensemble", "methods"},
    "train": {"ensemble", "measure", "methods", "steps"},
    "store": {"renamed", "spec"},
    "progress": {"spec", "store"},
    "sweep": {"progress", "ensemble", "environment", "methods", "settings", "spec", "store", "train"},
    "grok": {"spec", "store", "progress", "sweep"},
    "listeners": {"store", "progress", "sweep", "textplot"},
    "picture": {"grok", "report", "spec", "store"},
    "shows": {"bench", "durations", "grok", "listeners", "report", "settings", "spec", "store", "progress", "sweep"},
    "shows_settings": {"settings", "shows", "spec"},
    "shows_reports": {"report", "shows"},
    "shelf": {"datasets", "settings", "shows"},
    "cli": {
        "bench", "catalog", "choices", "datasets", "durations", "environment", "grok", "help_layout", "jobs", "listeners",
        "order", "picture", "progress", "report", "settings", "shelf", "shows", "shows_reports", "shows_settings", "store",
        "tuning",
    },
}  # fmt: skip
PACKAGES: dict[str, set[str]] = {
    "tasks": {"datasets", "settings", "spec", "tasks"},
    "models": {"models", "settings", "spec", "tasks"},
}
BENCH = {
    "bench", "catalog", "ensemble", "environment", "measure", "methods", "report", "settings", "spec", "steps", "tasks",
}  # fmt: skip
TUNING = {
    "catalog", "environment", "listeners", "progress", "renamed", "report", "settings", "shows", "spec", "store", "sweep",
    "tuning",
}  # fmt: skip
OF_VALUES = ("plan", "window", "outcome", "search", "estimate", "table", "results")
"""Of tuning: what needs nothing that trains."""
REPORT = {"catalog", "measure", "renamed", "report", "settings", "spec", "store", "theory"}
ALLOWED = {"torch", "numpy", "scipy", "pandas", "matplotlib", "typer", "rich", "safetensors", "jinja2", "egalitarian"}
FILES = sorted(LAB.rglob("*.py"))


def imported(file: Path) -> set[str]:
    """Modules, by their full names; of `from egalitarian.lab import x` that of x."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "egalitarian.lab":
            found |= {f"egalitarian.lab.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def rooms(file: Path) -> set[str]:
    """The rooms of the lab a file imports from."""
    return {name.split(".")[2] for name in imported(file) if name.startswith("egalitarian.lab.")}


def test_every_room_has_a_rule() -> None:
    assert {file.stem for file in LAB.glob("*.py")} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    assert rooms(LAB / f"{room}.py") <= ROOMS[room]


@pytest.mark.parametrize("file", [file for package in PACKAGES for file in sorted((LAB / package).glob("*.py"))], ids=str)
def test_imports_of_packages_go_one_way(file: Path) -> None:
    assert rooms(file) <= PACKAGES[file.parent.name]


@pytest.mark.parametrize("file", sorted((LAB / "report").glob("*.py")), ids=lambda file: file.stem)
def test_the_report_never_trains(file: Path) -> None:
    assert rooms(file) <= REPORT


@pytest.mark.parametrize("file", sorted((LAB / "bench").glob("*.py")), ids=lambda file: file.stem)
def test_the_benchmark_stores_no_runs(file: Path) -> None:
    assert rooms(file) <= BENCH


@pytest.mark.parametrize("file", sorted((LAB / "tuning").glob("*.py")), ids=lambda file: file.stem)
def test_tuning_trains_by_sweeps_alone(file: Path) -> None:
    assert rooms(file) <= TUNING
    if file.stem in OF_VALUES:
        assert not rooms(file) & {"sweep", "catalog", "listeners", "shows"}
    if file.stem == "table":
        assert {name for name in imported(file) if ".report." in name} <= {
            "egalitarian.lab.report.counts", "egalitarian.lab.report.statistics",
        }  # fmt: skip


@pytest.mark.parametrize("file", sorted((LAB / "theory").glob("*.py")), ids=lambda file: file.stem)
def test_the_theory_needs_only_numpy_and_scipy(file: Path) -> None:
    outside = {name.split(".")[0] for name in imported(file)} - set(sys.stdlib_module_names)
    assert rooms(file) <= {"theory"}
    assert outside <= {"numpy", "scipy", "egalitarian"}


@pytest.mark.parametrize("file", sorted((LAB / "datasets").glob("*.py")), ids=lambda file: file.stem)
def test_the_data_sets_need_only_torch(file: Path) -> None:
    outside = {name.split(".")[0] for name in imported(file)} - set(sys.stdlib_module_names)
    assert rooms(file) <= {"datasets"}
    assert outside <= {"torch", "egalitarian"}


OWN = {"slim": {"PIL"}, "pooling_triton": {"triton"}}
"""Pillow comes with matplotlib, Triton with torch where there is CUDA."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(LAB)))
def test_the_lab_uses_public_names_and_what_the_gpu_machine_has(file: Path) -> None:
    names = imported(file)
    assert {name for name in names if name.startswith("egalitarian.") and not name.startswith("egalitarian.lab")} == set()
    packages = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert packages <= ALLOWED | OWN.get(file.stem, set())


@pytest.mark.parametrize("room", ["settings", "spec"])
def test_settings_need_no_torch(room: str) -> None:
    assert {name.split(".")[0] for name in imported(LAB / f"{room}.py")} - set(sys.stdlib_module_names) <= {"egalitarian"}
