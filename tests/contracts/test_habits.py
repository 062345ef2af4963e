"""What contributors are told to run is what CI runs, and tests lie where the code does."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import egalitarian

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "egalitarian"
TESTS = ROOT / "tests"
APART = {"contracts", "helpers", "data", "gpu", "distributed", "hosts", "browser", "cluster"}
"""Folders of tests that mirror no room: what cuts across, what tests share, and what needs other machines."""


def test_the_hooks_run_what_ci_runs() -> None:
    ci = re.findall(r"^make \S+", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    hooks = re.findall(r"entry: (make \S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert sorted(hooks) == sorted(ci)
    assert "make test" in (ROOT / "README.md").read_text()


def test_every_target_is_listed_and_every_named_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    assert targets == set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    for page in ("CONTRIBUTING.md", "README.md", "ARCHITECTURE.md"):
        named = set(re.findall(r"\bmake ([a-z][a-z-]+)`", (ROOT / page).read_text()))
        assert named <= targets, page


@pytest.mark.parametrize("present", ["", "runs", "stored elsewhere", "results/evidence/addition-97.xz"])
def test_make_results_looks_for_runs_before_it_writes(tmp_path: Path, present: str) -> None:
    """With none, it must not leave the toy problem's results rewritten and the others old."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = tmp_path / ".venv" / "bin" / "egalitarian"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\necho called $1\n")
    command.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    if present:
        (tmp_path / present).mkdir(parents=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("EGALITARIAN_RUNS", "MAKEFLAGS")}
    environment |= {"EGALITARIAN_RUNS": present} if present.startswith("stored") else {}
    done = subprocess.run(["make", "results"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    called = re.findall("^called (.*)", done.stdout, re.MULTILINE)
    assert (done.returncode, called) == ((0, ["toy", "report"]) if present else (2, []))
    assert ("no stored runs and no evidence" in done.stderr) == (not present)


def test_the_citation_has_the_version_of_the_package() -> None:
    assert f"version: {egalitarian.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/lab.md"])
def test_pages_say_whether_evidence_is_committed(page: str) -> None:
    committed = any((ROOT / "results" / "evidence").glob("*.xz"))
    assert ("No evidence is committed yet" in (ROOT / page).read_text()) == (not committed)


@pytest.mark.parametrize("folder", sorted({file.parent for file in TESTS.rglob("test_*.py")}), ids=lambda path: path.name)
def test_tests_mirror_the_rooms(folder: Path) -> None:
    relative = folder.relative_to(TESTS)
    if relative.parts and relative.parts[0] in APART:
        return
    assert (SOURCE / relative).is_dir(), f"tests/{relative} must mirror a room of src/egalitarian"
    modules = {file.stem for file in (SOURCE / relative).glob("*.py")} | {relative.name}
    for file in folder.glob("test_*.py"):
        subject = file.stem.removeprefix("test_")
        named = subject in THEMES or any(subject == name or subject.startswith(f"{name}_") for name in modules)
        assert named, f"{file.relative_to(ROOT)} must be named after a module of its room"


THEMES: set[str] = {"laws", "cutoff", "state"}
"""Tests of a room as a whole: laws of all kernels, cut-offs of all kernels, checkpoints of both optimizers' doors."""


SCRIPTS = sorted(file for folder in ("benchmarks", "docs", "examples") for file in (ROOT / folder).glob("*.py"))


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_names_that_exist(file: Path) -> None:
    """No test runs the benchmarks, so a moved name would go unnoticed."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("egalitarian"):
            found = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(found, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_the_map_lists_every_file() -> None:
    """The tree in ARCHITECTURE.md, read by its indentation, is the tree of src/egalitarian."""
    block = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    listed: set[str] = set()
    folders: list[tuple[int, str]] = []
    for line in block.split("\ntests/")[0].splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        first = line.split()[0]
        folders = [(depth, name) for depth, name in folders if depth < indent]
        inside = "/".join(name for _, name in folders)
        if first.endswith("/") and first not in ("paper/",):
            folders.append((indent, first.rstrip("/")))
            inside = "/".join(name for _, name in folders)
        listed |= {f"{inside}/{name}" for name in re.findall(r"\b\w+\.py\b", line)}
    there = {f"src/egalitarian/{file.relative_to(SOURCE).as_posix()}" for file in SOURCE.rglob("*.py")}
    doors = {name for name in there if name.endswith("/__init__.py") and name != "src/egalitarian/__init__.py"}
    assert listed == there - doors


def texts() -> list[Path]:
    folders = ("docs", "benchmarks", "examples", "src", "tests")
    pages = [file for folder in folders for kind in ("md", "toml", "py") for file in (ROOT / folder).rglob(f"*.{kind}")]
    return sorted(file for file in [*ROOT.glob("*.md"), *pages] if "results" not in file.parts)


@pytest.mark.parametrize("file", texts(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(file: Path) -> None:
    """A page, a docstring or a comment that names a file of the project names one that is there."""
    if file.name == "CHANGELOG.md":
        return
    named = NAMED.findall(file.read_text(encoding="utf-8"))
    missing = {name for name in named if not (ROOT / name).exists() and not FAKE.search(name)}
    assert not missing


NAMED = re.compile(r"(?<![\w./-])((?:src/egalitarian|tests|benchmarks|docs|examples)/[\w/.-]+\.(?:py|md|toml))\b")
FAKE = re.compile(r"NAME|PAGE|times\.md|test_X|/a\.(py|md)|page\.md|other\.md|none\.md|gone\.")
"""Files that a test makes up, and placeholders."""
