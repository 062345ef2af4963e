"""Imports follow the house: down once, and never from the library into anything but torch."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "egalitarian"

MAY_IMPORT: dict[str, set[str]] = {
    "checks": set(),
    "selectors": set(),
    "minimax": set(),
    "gram": set(),
    "products": {"minimax", "resident"},
    "inverses": {"gram", "minimax", "products", "sketches"},
    "resident": {"choice", "resident_triton"},
    "resident_triton": set(),
    "choice": set(),
    "ways": {"choice", "gram", "products", "sketches"},
    "kernels": {"checks", "choice", "inverses", "products", "ways", "sketches"},
    "until": {"checks"},
    "spectrum": {"kernels"},
    "plan": {"checks"},
    "select": {"checks", "plan", "selectors"},
    "roster": {"plan"},
    "watch": {"plan"},
    "sketches": set(),
    "transforms": {"checks", "choice", "kernels", "plan", "sketches"},
    "filters": {"checks", "plan", "transforms"},
    "buckets": {"plan"},
    "passage": {"buckets", "kernels", "plan", "transforms"},
    "apply": {"buckets", "kernels", "passage", "plan", "transforms"},
    "optim": {"apply", "checks", "plan", "roster", "transforms", "watch"},
    "host": {"apply", "plan", "select", "transforms", "until"},
    "attach": {
        "apply",
        "checks",
        "host",
        "kernels",
        "optim",
        "plan",
        "roster",
        "select",
        "spectrum",
        "transforms",
        "until",
        "watch",
    },
    "__init__": {
        "apply",
        "attach",
        "filters",
        "kernels",
        "optim",
        "plan",
        "select",
        "sketches",
        "spectrum",
        "transforms",
        "until",
    },
    "__main__": {"", "lab.cli"},
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_every_room_has_a_rule() -> None:
    assert {file.stem for file in PACKAGE.glob("*.py")} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_one_way(room: str) -> None:
    ours = {
        name.removeprefix("egalitarian").removeprefix(".")
        for name in imports(PACKAGE / f"{room}.py")
        if "egalitarian" in name
    }
    assert ours <= MAY_IMPORT[room]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_the_library_needs_only_torch(room: str) -> None:
    foreign = {name.split(".")[0] for name in imports(PACKAGE / f"{room}.py")} - set(sys.stdlib_module_names)
    assert foreign <= {"torch", "egalitarian", "__future__"} | ({"triton"} if room == "resident_triton" else set())


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"apply"}))
def test_only_apply_writes_gradients(room: str) -> None:
    for node in ast.walk(ast.parse((PACKAGE / f"{room}.py").read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        assert not any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets)
