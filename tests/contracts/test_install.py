"""`pip install .` into an environment that has torch and nothing else of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import egalitarian as eg

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_clean_environment(tmp_path: Path) -> None:
    def call(*command: str | Path) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    call(sys.executable, "-m", "venv", tmp_path / "env")
    binaries = tmp_path / "env" / "bin"
    call(binaries / "pip", "install", "-q", "--no-deps", str(ROOT))
    site = Path(call(binaries / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for name in (
        "torch",
        "torchgen",
        "functorch",
        "typing_extensions.py",
        "sympy",
        "mpmath",
        "networkx",
        "jinja2",
        "filelock",
    ):
        source = Path(sysconfig.get_path("purelib")) / name
        if source.exists():
            (site / name).symlink_to(source)  # torch and what it needs, not numpy
    where = call(binaries / "python", "-W", "ignore", "-c", "import egalitarian; print(egalitarian.__file__)")
    assert str(tmp_path) in where
    errata = site / "egalitarian" / "lab" / "report" / "errata.md"
    assert errata.read_bytes() == (ROOT / "docs" / "errata.md").read_bytes(), "on the HTML page of a report"
    assert call(binaries / "egalitarian", "--version").strip() == f"egalitarian {eg.__version__}"
    assert "pip install 'egalitarian[lab]'" in call(binaries / "egalitarian")
