"""The environment of a run, with versions, hardware and the state of the source code; and the time that it took."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

import egalitarian
from egalitarian.lab.config import Record, SpecError

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
        "beside": _concurrent(),  # the stored key of every version
        "source": source(),
        "commit": commit(),
    }


def _concurrent() -> int:
    text = os.environ.get(CONCURRENT, "0")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise SpecError(f"{CONCURRENT} must be a number of processes, got {text!r}; unset it: the lab sets it for --jobs")
    return int(text)


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


class TimeSpent(NamedTuple):
    """The seconds that a run took, as reports need them: sums and medians of its timings."""

    share: float | None
    """One seed's share of training and measuring. Epochs that were trained twice count twice."""
    sessions: tuple[float, ...]
    """Training and measuring of all seeds, for each time the run was trained."""
    longest: int | None
    """The index of the session with the most epochs."""
    ms_per_epoch: float | None
    """One seed's share of the training, as the median over the epochs of that session."""
    measuring_ms_per_epoch: float | None

    @staticmethod
    def of(environments: Sequence[Record], timings: Sequence[Record]) -> TimeSpent:
        """From the entries of both files of a run. Of an epoch that was trained twice, the later timing is in medians."""
        bounds = [*_first_timings(environments, timings), len(timings)]
        sessions = (timings[first:last] for first, last in pairwise(bounds))
        shares = [(timing["training"] + timing["measuring"]) / timing["seeds"] for timing in timings]
        by_epoch = {timing["epoch"]: timing for timing in timings}
        starts = [environment["epoch"] for environment in environments]
        ends = [min(starts[index + 1 :], default=len(by_epoch)) for index in range(len(starts))]
        longest = max(range(len(starts)), key=lambda index: (ends[index] - starts[index], index), default=None)
        span = range(0) if longest is None else range(starts[longest], ends[longest])
        own = [timing for epoch, timing in by_epoch.items() if epoch in span]
        return TimeSpent(
            share=sum(shares) if shares else None,
            sessions=tuple(sum(timing["training"] + timing["measuring"] for timing in each) for each in sessions),
            longest=longest,
            ms_per_epoch=_median_ms(timing["training"] / timing["seeds"] for timing in own),
            measuring_ms_per_epoch=_median_ms(timing["measuring"] / timing["seeds"] for timing in own),
        )


def _first_timings(environments: Sequence[Record], timings: Sequence[Record]) -> list[int]:
    """The index of each session's first timing. A session that resumed repeats epochs, so the last line of one counts."""
    indices: list[int] = []
    end = len(timings)
    for environment in reversed(environments):
        found = [index for index in range(end) if timings[index]["epoch"] == environment["epoch"]]
        end = found[-1] if found else end
        indices.append(end)
    return indices[::-1]


def _median_ms(seconds: Iterable[float]) -> float | None:
    numbers = list(seconds)
    return 1000 * median(numbers) if numbers else None
