"""What a user types, as values: seeds, devices, lists of names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from egalitarian.lab.config.schema import SpecError

MOST_SEEDS = 10_000


def seeds(text: str) -> list[int]:
    """`0-7`, `3`, `0,2,5`, `0-3,8`: each once, in the order given."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if match is None:
            raise SpecError(f"--seeds must be numbers and ranges, got {text!r}; for example 0-7 or 0,2,5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST_SEEDS:
            raise SpecError(
                f"--seeds must be ranges from low to high, of at most {MOST_SEEDS} seeds, got {part!r}; for example 0-7"
            )
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def device(text: str, threads: int = 1) -> torch.device:
    """`auto` is the GPU where there is one. On a CPU, so many threads: by default one, since small matrix products on busy
    cores are many times slower when threads wait for each other.
    """
    torch.set_num_threads(threads)
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(text)
    except RuntimeError:
        raise SpecError(f"--device must be auto, cpu, cuda or cuda:N, got {text!r}; auto chooses for you") from None
    if chosen.type not in ("cpu", "cuda"):
        raise SpecError(f"--device must be auto, cpu, cuda or cuda:N, got {text!r}; auto chooses for you")
    if chosen.type == "cuda" and (not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count()):
        there = f"{torch.cuda.device_count()} GPU(s)" if torch.cuda.is_available() else "no GPU"
        raise SpecError(f"--device must be one that torch finds, got {text!r} and {there}; use --device cpu or auto")
    return chosen


def use_data(folder: Path | None) -> None:
    """Where data sets are read from, here and by processes that this one starts."""
    if folder is not None:
        os.environ["EGALITARIAN_DATA"] = str(folder.expanduser())


def existing(runs: Path) -> Path:
    """The folder of stored runs, for commands that only read."""
    if not runs.is_dir():
        raise SpecError(f"--runs must be a folder of stored runs, got {runs}; `egalitarian run` makes one")
    return runs


def named(option: str, folder: Path) -> Path:
    """A folder of its own, not the one we are in: a report writes a README.md."""
    if folder.resolve() == Path.cwd():
        raise SpecError(f"{option} must be a folder of its own, got the current one; for example report")
    return folder


def own_file(path: Path, mark: str) -> Path:
    """A file to be written: a new one, or one of the same kind, which has the mark in it."""
    if path.is_dir() or (path.exists() and mark not in path.read_text(encoding="utf-8", errors="replace")):
        what = "a folder" if path.is_dir() else "a file of another kind"
        raise SpecError(f"{path} must be new or have {mark} in it, got {what}; name another")
    return path


def at_least_one(names: list[str]) -> list[str]:
    if not names:
        raise SpecError("EXPERIMENT must be given, got none; name some from `egalitarian list`, or use --all")
    return list(dict.fromkeys(names))


def words(text: str | None) -> list[str]:
    """A comma-separated list, each once; None and nothing are the empty list."""
    return list(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def several(values: Sequence[str] | None) -> list[str]:
    """Words from an option that may be given more than once, each time with several."""
    return list(dict.fromkeys(word for value in values or () for word in words(value)))


def numbers(option: str, text: str) -> list[float] | None:
    """A comma-separated list of numbers; nothing is None."""
    try:
        return [float(word) for word in words(text)] or None
    except ValueError:
        raise SpecError(f"{option} must be numbers, got {text!r}; for example 0.1,0.01") from None


def counts(option: str, text: str) -> tuple[int, ...]:
    """A comma-separated list of whole numbers from 1; nothing is none."""
    found = words(text)
    if not all(re.fullmatch(r"[1-9]\d{0,3}", word) for word in found):
        raise SpecError(f"{option} must be whole numbers from 1 to 9999, got {text!r}; for example 1,8")
    return tuple(int(word) for word in found)
