"""Where and with what a run was made: versions, hardware, the state of the source."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import torch

import egalitarian

VERSIONS = ("torch", "numpy", "safetensors")
BESIDE = "EGALITARIAN_BESIDE"
"""The variable by which a process of several is told how many others train beside it."""


def environment(device: torch.device) -> dict[str, Any]:
    """All that may make a difference, in plain values. No path, no name of a person or a machine."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "egalitarian": egalitarian.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in VERSIONS},
        "system": f"{platform.system()} {platform.machine()}",
        "device": device.type,
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "beside": int(os.environ.get(BESIDE, "0")),
        "source": source(),
        "commit": commit(),
    }


@cache
def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


@cache
def source() -> str:
    """A hash of every file of the package: tells whether two runs came from the same code."""
    digest = hashlib.sha256()
    root = Path(str(resources.files("egalitarian")))
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".toml"):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def commit() -> str | None:
    """The checkout's commit, `+` where it was changed since; None outside a checkout."""
    root = Path(str(resources.files("egalitarian")))
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
