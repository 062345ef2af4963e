"""The environment of a run: versions, hardware and the state of the source code."""

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
CONCURRENT = "EGALITARIAN_BESIDE"
"""The environment variable with the number of other processes that train concurrently; a pool sets it."""


def environment(device: torch.device) -> dict[str, Any]:
    """All that may make a difference, in plain values. It names no path, no person and no machine."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "egalitarian": egalitarian.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in VERSIONS},
        "system": f"{platform.system()} {platform.machine()}",
        "device": device.type,
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "beside": int(os.environ.get(CONCURRENT, "0")),  # the stored key of every version: concurrent processes
        "source": source(),
        "commit": commit(),
    }


@cache
def hardware(device: torch.device) -> str:
    """The model of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


@cache
def source() -> str:
    """A hash of every file of the package: two runs of the same code have the same."""
    digest = hashlib.sha256()
    root = Path(str(resources.files("egalitarian")))
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".toml"):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def commit() -> str | None:
    """The commit that is checked out, with `+` if files have changed since; None outside a git repository."""
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
