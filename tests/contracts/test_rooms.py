"""Laws of the house that import contracts cannot say: doors, who writes gradients, what each part needs, sizes, names."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "egalitarian"
LAB = PACKAGE / "lab"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(file.parent for file in PACKAGE.rglob("__init__.py") if file.parent not in (PACKAGE, LAB))
TRITON = {"triton_kernels", "pooling_triton"}
SMALL = 30
"""A file of at most so many lines with a single importer belongs into that importer."""


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def module(file: Path) -> str:
    parts = ("egalitarian", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(file): file for file in FILES}


@cache
def imports(file: Path) -> frozenset[str]:
    """The modules that a file imports, by full name; of `from room import x`, `room.x` if that is a module."""
    found: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            submodules = {f"{base}.{alias.name}" for alias in node.names} & set(MODULES)
            names = {f"{base}.{alias.name}" for alias in node.names} - submodules
            found |= submodules | ({base} if names or not submodules else set())
    return frozenset(found)


def room_of(name: str) -> str:
    """The outermost room that a module is in: `egalitarian.kernels`, `egalitarian.lab.report`."""
    parts = name.split(".")
    depth = 3 if parts[:2] == ["egalitarian", "lab"] else 2
    return ".".join(parts[:depth])


def label(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("file", FILES, ids=label)
def test_rooms_are_entered_through_their_doors(file: Path) -> None:
    """A file imports another room's `__init__.py`, never a module inside it."""
    own = room_of(module(file))
    for name in imports(file) & set(MODULES):
        if room_of(name) != own and room_of(name) != name:
            door = MODULES[name].name == "__init__.py"
            assert door, f"{label(file)} must import from the door of {room_of(name)}, got {name}; export it there"


@pytest.mark.parametrize("room", ROOMS, ids=label)
def test_a_door_says_what_its_room_is_for(room: Path) -> None:
    purpose = ast.get_docstring(tree(room / "__init__.py"))
    assert purpose, f"{label(room)} must have a docstring"
    lines = [line for line in purpose.splitlines() if line.strip()]
    assert len(lines) <= 6, f"{label(room)} must say its purpose in about five lines, got {len(lines)}"


@pytest.mark.parametrize("file", FILES, ids=label)
def test_only_apply_writes_gradients(file: Path) -> None:
    if file.parent.name == "apply" or LAB in file.parents:
        return
    for node in ast.walk(tree(file)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        assert not any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets)


TORCH = {
    "torch.nn": {"select", "optimizers", "integrations"},
    "torch.optim": {"optimizers", "integrations"},
    "torch.distributed": {"distributed"},
}
"""Who may import these parts of torch: kernels see tensors only; optimizers and trainers know optimizers."""


@pytest.mark.parametrize("file", [file for file in FILES if LAB not in file.parents], ids=label)
def test_parts_of_torch_are_known_where_they_belong(file: Path) -> None:
    known = {"torch.nn" if name == "nn" else f"torch.{name}" for name in _from_torch(file)} | set(imports(file))
    for part, rooms in TORCH.items():
        if any(name == part or name.startswith(f"{part}.") for name in known):
            assert file.parent.name in rooms, f"{label(file)} must not import {part}"


def _from_torch(file: Path) -> set[str]:
    nodes = [node for node in ast.walk(tree(file)) if isinstance(node, ast.ImportFrom) and node.module == "torch"]
    return {alias.name for node in nodes for alias in node.names}


def outside(file: Path) -> set[str]:
    """The packages that a file needs besides Python's own and ours."""
    return {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names) - {"egalitarian"}


TRAINERS = {
    "integrations/lightning.py": {"lightning", "pytorch_lightning"},
    "integrations/huggingface.py": {"transformers"},
    "integrations/accelerate.py": {"accelerate"},
}
"""Files that are imported by their own name, and the package that each is for."""


@pytest.mark.parametrize("file", [file for file in FILES if LAB not in file.parents], ids=label)
def test_the_library_needs_only_torch(file: Path) -> None:
    assert outside(file) <= {"torch"} | ({"triton"} if file.stem in TRITON else TRAINERS.get(label(file), set()))


def test_each_extra_installs_what_its_trainer_needs() -> None:
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for file, packages in TRAINERS.items():
        (extra,) = re.findall(r"pip install 'egalitarian\[(\w+)\]'", (PACKAGE / file).read_text(encoding="utf-8"))
        assert packages & {re.split(r"\W", needed)[0] for needed in project["optional-dependencies"][extra]}


def test_nothing_imports_a_trainer() -> None:
    """Neither a door nor the lab: what imports it needs its package."""
    named = {f"egalitarian.{file.removesuffix('.py').replace('/', '.')}" for file in TRAINERS}
    named.add("egalitarian.integrations.tensorboard")
    importers = {label(file) for file in FILES if imports(file) & named}
    assert importers <= {"integrations/lightning.py", "integrations/huggingface.py"}  # SpectrumWriter, for its type


@pytest.mark.parametrize("file", sorted((LAB / "theory").rglob("*.py")), ids=label)
def test_the_theory_is_numpy(file: Path) -> None:
    assert outside(file) <= {"numpy", "scipy"}
    assert {room_of(name) for name in imports(file) if name.startswith("egalitarian")} <= {"egalitarian.lab.theory"}


@pytest.mark.parametrize("file", sorted([*(LAB / "analysis").rglob("*.py"), *(LAB / "report").rglob("*.py")]), ids=label)
def test_the_report_never_trains(file: Path) -> None:
    """Neither directly, nor by a name that trains behind another room's door."""
    rooms = {room_of(name).rpartition(".")[2] for name in imports(file) if name.startswith("egalitarian.lab.")}
    assert not rooms & {"training", "problems", "executors", "tuning", "console", "bench"}
    names = {alias.name for node in ast.walk(tree(file)) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not names & {"sweep", "train", "Ensemble", "Stepper", "Request"}


LAB_NEEDS = {
    "torch", "numpy", "scipy", "pandas", "matplotlib", "typer", "rich", "safetensors", "jinja2", "filelock", "PIL",
    "markdown_it",
}  # fmt: skip
"""What the GPU machine has, too. Pillow comes with matplotlib, markdown-it-py with rich."""


PAGES = {file for file in FILES if file.parent == LAB / "explorer" / "pages"}
"""What needs the extra `explore`, and is imported by the explorer's server alone, when it serves."""


@pytest.mark.parametrize("file", [file for file in FILES if LAB in file.parents], ids=label)
def test_the_lab_needs_what_the_extra_installs(file: Path) -> None:
    serves = {"nicegui"} if file in PAGES else {"nicegui", "uvicorn", "fastapi"} if label(file) == SERVER else set()
    own = CLUSTERS.get(label(file), set())
    assert outside(file) <= LAB_NEEDS | serves | own | ({"triton"} if file.stem in TRITON else set())


CLUSTERS = {"lab/executors/ray.py": {"ray"}, "lab/executors/slurm.py": {"submitit"}}
"""Files that are always imported, and the package that each imports when it is used."""


@pytest.mark.parametrize("file", CLUSTERS)
def test_a_clusters_package_is_imported_when_it_is_used(file: str) -> None:
    top = {name.split(".")[0] for node in tree(PACKAGE / file).body for name in _names_imported(node)}
    assert not top & CLUSTERS[file]
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = re.findall(r"pip install 'egalitarian\[(\w+)\]'", (PACKAGE / file).read_text(encoding="utf-8"))
    assert CLUSTERS[file] & {re.split(r"\W", needed)[0] for needed in project["optional-dependencies"][extra]}


SERVER = "lab/explorer/server.py"


def test_nothing_else_imports_a_page() -> None:
    names = {module(file) for file in PAGES if file.name != "__init__.py"}
    assert {label(file) for file in FILES if imports(file) & names and file not in PAGES} == {SERVER}
    top = {name for node in tree(LAB.parent / SERVER).body for name in _names_imported(node)}
    assert not {name for name in top if name.startswith(("nicegui", "uvicorn", "fastapi")) or name in names}


def _names_imported(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ImportFrom):
        return {node.module or ""}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def test_no_class_name_occurs_twice() -> None:
    names = Counter(node.name for file in FILES for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef))
    transforms = {"Polar", "LowRankPolar", "RowNorm", "Natural", "Momentum", "GrokfastEMA", "GrokfastMA"}
    twice = {name for name, count in names.items() if count > 1} - transforms  # settings named as what they configure
    assert not twice


def test_no_small_file_has_a_single_importer() -> None:
    importers: dict[str, set[Path]] = {}
    for file in FILES:
        for name in imports(file):
            importers.setdefault(name, set()).add(file)
    small = [
        label(file)
        for name, file in MODULES.items()
        if file.name not in ("__init__.py", "__main__.py")
        and file.stem not in TRITON
        and len(file.read_text(encoding="utf-8").splitlines()) <= SMALL
        and len({user for user in importers.get(name, ()) if user.name != "__init__.py"}) <= 1
    ]
    assert not small


def test_the_house_has_few_files() -> None:
    """It was rebuilt with 130. Tiers, CUDA graphs, evidence, trainers, the HTML page, measures, the explorer came later.

    Clusters added three.
    """
    assert len(FILES) <= 205
    assert len(list((LAB / "report").rglob("*.py"))) <= 31
    assert len(list((LAB / "tuning").rglob("*.py"))) <= 8
