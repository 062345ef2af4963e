"""Installs the built wheel and sdist in clean environments, with and without extras, and uses them there (`make dist`).

python tests/contracts/packages.py dist
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
ERRATA = "egalitarian/lab/report/errata.md"
"""On the HTML page of a report; in a checkout the file is in docs/."""
GROKS = "test  9"
"""What the last line of the README's quick start has: a test accuracy from 90 % on."""


def main(folder: Path) -> None:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_contents(wheel, sdist)
    for file, extra in ((wheel, ""), (sdist, ""), (wheel, "[lab]")):
        print(f"{file.name}{extra}: installed in a clean environment", end=", ", flush=True)
        with tempfile.TemporaryDirectory() as place:
            use(Path(place), f"{file.resolve()}{extra}", lab=bool(extra))
        print("works")


def check_contents(wheel: Path, sdist: Path) -> None:
    """The wheel has every file of the package, the errata and nothing else; the sdist has the package and its tests."""
    package = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "egalitarian").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == package | {ERRATA}, f"wheel and package must have the same files, got {sorted(inside ^ package)}"
    assert zipfile.ZipFile(wheel).read(ERRATA) == (ROOT / "docs" / "errata.md").read_bytes()
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {f"src/{name}" for name in package} | {"README.md", "CHANGELOG.md", "LICENSE", "tests/contracts/packages.py"}
    assert wanted <= source, f"sdist must have every file of the package, got none of {sorted(wanted - source)}"


def use(place: Path, requirement: str, *, lab: bool) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "EGALITARIAN"))}

    def call(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    call(sys.executable, "-m", "venv", "env")
    python, command = place / "env" / "bin" / "python", place / "env" / "bin" / "egalitarian"
    for what in ("torch", requirement):
        call(python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "-c", CONSTRAINTS, what)
    call(python, "-m", "pip", "--disable-pip-version-check", "check")
    version = call(command, "--version").strip()
    assert version in Path(requirement).name.replace("-", " "), f"--version must be the package's, got {version!r}"
    (place / "start.py").write_text(quick_start(), encoding="utf-8")
    *_, last = call(python, "-W", "error::UserWarning:egalitarian", "start.py").strip().splitlines()
    assert GROKS in last, f"the quick start must grok, got {last!r}"
    if lab:
        assert "addition-97" in call(command, "list")
        smaller = ("--set=task.modulus=7", "--set=model.width=8", "--set=training.batch=8", "--epochs=3", "--seeds=0,1")
        call(command, "run", "addition-97", "-m", "sgd,egd", *smaller)
        assert "Wrote" in call(command, "report", "--out", "report")
    else:
        assert "pip install 'egalitarian[lab]'" in call(command)


def quick_start() -> str:
    """The first block of Python in the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
