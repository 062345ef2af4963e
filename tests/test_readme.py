"""Every Python block of the README runs, in order, as a newcomer would paste them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    x, y = torch.randn(16, 12), torch.randint(4, (16,))
    names = {
        "model": model,
        "loader": [(x, y)] * 3,
        "loss_fn": nn.CrossEntropyLoss(),
        "val_accuracy": 0.97,
        "x": x,
        "y": y,
    }
    assert len(BLOCKS) >= 5
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
        if "val_accuracy" in block:
            assert names["egd"].active is False
    assert "0.weight  (32, 12)  taken as 32 x 12" in capsys.readouterr().out


def test_the_first_block_is_the_promised_loop() -> None:
    lines = [line.split("#")[0].rstrip() for line in BLOCKS[0].splitlines()]
    assert lines == [
        "import torch, egalitarian as eg",
        "",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)",
        "egd = eg.attach(optimizer, model, until=eg.Until(0.95))",
        "print(egd.plan)",
        "",
        "for x, y in loader:",
        "    loss_fn(model(x), y).backward()",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
        "egd.observe(val_accuracy)",
    ]


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_links_into_pages_lead_to_headings() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            target = page.parent / file if file else page
            assert anchor in anchors(target.read_text()), f"{page.name}: {file}#{anchor}"


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: small letters, no punctuation, hyphens for spaces, numbers for repeats."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug + (f"-{place}" if place else "") for slug, count in found.items() for place in range(count + 1)}


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.stem)
def test_the_examples_run(file: Path) -> None:
    command = [sys.executable, str(file), "--quick"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
